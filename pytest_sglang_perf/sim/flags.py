"""The command line of one sglang version.

The tables in ``dialects/`` hold every option of that version: its names, the field that it sets, type,
choices and default. What sglang refuses, this refuses in the same words (``error: unrecognized arguments``),
exit 2.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["ServerArgs", "parse_flags"]

_TYPES: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str}
_SIZES = {
    **{f"{letter}i": 1024**power for power, letter in enumerate("KMGT", 1)},
    **{letter: 1000**power for power, letter in enumerate("kMGT", 1)},
}
# Fields that exist without being options, or whose option only appears under another name.
_EXTRA_FIELDS = {"tp_size": 1, "ep_size": 1, "pp_size": 1, "dp_size": 1, "model_path": None}


@dataclass(frozen=True)
class ServerArgs:
    """Parsed arguments: every field of that version with its value, and the words they came from."""

    version: str
    argv: tuple[str, ...]
    fields: dict[str, Any]

    def __getitem__(self, field: str) -> Any:
        return self.fields.get(field)


def parse_flags(argv: Sequence[str], version: str) -> ServerArgs:
    """Parse ``argv`` as sglang ``version`` does.

    Raises:
        SystemExit: code 2 for a flag or value that this version does not take, after its usage text.
    """
    parser = argparse.ArgumentParser(prog="sglang serve" if version != "0.5.10" else "launch_server.py")
    fields: dict[str, Any] = dict(_EXTRA_FIELDS)
    for row in json.loads((resources.files(__package__) / "dialects" / f"flags-{version}.json").read_bytes()):
        kind: str = row["kind"]
        options: dict[str, Any] = {"dest": row["field"], "default": argparse.SUPPRESS}
        if row.get("required"):
            options["required"] = True
        if kind == "true":
            options["action"] = "store_true"
        elif kind == "bool":
            options["action"] = argparse.BooleanOptionalAction
        elif kind == "ignored":
            options["action"] = _Ignored
        else:
            options |= _valued(kind, row.get("choices"))
        parser.add_argument(*row["options"], **options)
        fields.setdefault(row["field"], row.get("default", False if kind == "true" else None))
    fields |= vars(parser.parse_args(_with_config(list(argv))))
    fields["tokenizer_path"] = fields.get("tokenizer_path") or fields["model_path"]
    fields["served_model_name"] = fields.get("served_model_name") or fields["model_path"]
    fields.pop("config", None)
    return ServerArgs(version, tuple(argv), fields)


def _with_config(argv: list[str]) -> list[str]:
    """``argv`` with what the file of ``--config`` says before it, so that the command line wins."""
    if "--config" not in argv:
        return argv
    import yaml

    at = argv.index("--config")
    with Path(argv[at + 1]).open(encoding="utf-8") as file:
        settings: dict[str, Any] = yaml.safe_load(file)
    words: list[str] = []
    for name, value in settings.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not False and value is not None:
            words += [f"--{name}", str(value)]
    return [*words, *argv[:at], *argv[at + 2 :]]


def _valued(kind: str, choices: list[Any] | None) -> dict[str, Any]:
    options: dict[str, Any] = {}
    base = kind.rstrip("+*?")
    if kind != base:
        options["nargs"] = kind[len(base) :]
    options["type"] = _size if base == "size" else _TYPES[base]
    if choices is not None:
        options["choices"] = choices
    return options


def _size(text: str) -> int:
    """An integer, with k, M, G, T for thousands or Ki, Mi, Gi, Ti for powers of 1,024."""
    for suffix, factor in _SIZES.items():
        if text.endswith(suffix):
            return int(float(text.removesuffix(suffix)) * factor)
    return int(text)


class _Ignored(argparse.Action):
    """A deprecated option without a value: sglang warns and goes on."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **options)

    def __call__(self, parser: object, namespace: object, values: object, option: str | None = None) -> None:
        del parser, namespace, values
        print(
            f"\033[33mThe command line argument '{option}' is deprecated and will be removed in "
            "future versions.\033[0m",
            file=sys.stderr,
        )
