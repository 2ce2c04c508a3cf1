"""``sglang-perf``: one command, each of whose subcommands is a module of its own here."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING

from pytest_sglang_perf.errors import SglangPerfError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

# Name -> (module with ``main(argv) -> exit status``, what it is for). Imported only when asked for.
COMMANDS = {
    "baseline": (
        "pytest_sglang_perf.cli.baseline",
        "list, show and compare stored baselines, and follow them over time",
    ),
    "classify": ("pytest_sglang_perf.cli.classify", "say from its log how a server is, or why it ended"),
    "compare": ("pytest_sglang_perf.cli.compare", "compare two runs, or two server configs of one run"),
    "doctor": ("pytest_sglang_perf.cli.doctor", "look a node over before measuring on it"),
    "load": ("pytest_sglang_perf.cli.load", "measure a server at one level, or this machine's own floor"),
    "reap": ("pytest_sglang_perf.cli.reap", "end what killed sessions left on a node, and only that"),
    "report": ("pytest_sglang_perf.cli.report", "write the report of a run again, as Markdown or HTML"),
    "schema": ("pytest_sglang_perf.cli.schema", "print the JSON Schema of suite files, for editors"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; returns the exit status (2 for a usage error)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in COMMANDS:
        module = importlib.import_module(COMMANDS[arguments[0]][0])
        try:
            return int(module.main(arguments[1:]))
        except SglangPerfError as error:
            print(f"sglang-perf: {error}", file=sys.stderr)
            return 2
        except BrokenPipeError:  # the reader, such as `head`, has what it wanted
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at exit would fail too
            return 141
    width = max(map(len, COMMANDS))
    lines = "\n".join(f"  {name:<{width}}  {what}" for name, (_, what) in sorted(COMMANDS.items()))
    usage = f"usage: sglang-perf COMMAND [arguments]\n\n{lines}\n\nEach takes --help and --json."
    if arguments and arguments[0] in {"-h", "--help"}:
        print(usage)
        return 0
    print(usage, file=sys.stderr)
    return 2
