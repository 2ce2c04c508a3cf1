"""Which arguments the sglang of an interpreter knows, and which of them nothing reads.

``--help`` of sglang takes ten seconds of imports and may need a GPU, so its source is read instead: it is on the
node, and it is what will run.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any, Dict, List, Set

from .command import run

__all__ = ["arguments_of"]

_FIND_S = 5.0
_READ_S = 5.0
_FIND = (
    "import importlib.util, json; s = importlib.util.find_spec('sglang'); "
    "print(json.dumps(list(s.submodule_search_locations or []) if s else []))"
)
_LITERAL = re.compile(r"""["'](--[a-z0-9][a-z0-9-]*)["']""")
_FIELD = re.compile(r"^    ([a-z]\w*): (?:A\[|[A-Za-z])", re.MULTILINE)
_DERIVED = re.compile(r"^    ([a-z]\w*): A\[", re.MULTILINE)
_REPLACED = re.compile(r"""["'](--[a-z0-9][a-z0-9-]*)["'],(?:[^()]{0,200}?)new_flag=["']([^"']+)["']""", re.DOTALL)
_WORD = re.compile(r"[a-z]\w+")


def arguments_of(python: str) -> Dict[str, Any]:
    """Read the sglang that ``python`` would import; blocks for at most 10 s, never raises.

    Returns:
        ``arguments`` (canonical names, with dashes; None where they cannot be told), ``replaced`` {old: new flag},
        ``unread`` (arguments that are declared and that no other file mentions; None when reading took too long)
        and ``error``.
    """
    answer: Dict[str, Any] = {"arguments": None, "replaced": {}, "unread": None, "error": None}
    finished = run([python, "-c", _FIND], _FIND_S, cwd="/")
    error = finished.trouble(python)
    try:
        folders = json.loads(finished.out) if error is None else []
    except ValueError:
        error = f"{python} is no Python"
        folders = []
    if error is None and not folders:
        error = f"{python} has no sglang"
    if error is not None:
        answer["error"] = error
        return answer
    try:
        _read(Path(folders[0]) / "srt", answer)
    except OSError as trouble:
        answer["error"] = str(trouble)
    return answer


def _read(srt: Path, answer: Dict[str, Any]) -> None:
    declaring = [srt / "server_args.py", *sorted((srt / "arg_groups").glob("fields/*.py"))]
    fields: Set[str] = set()
    flags: Set[str] = set()
    derived: Set[str] = set()
    for path in declaring:
        text = path.read_text(encoding="utf-8", errors="replace")
        fields |= set(_FIELD.findall(text))
        derived |= set(_DERIVED.findall(text))  # before 0.5.11 each field had its own add_argument
        flags |= set(_LITERAL.findall(text))
        answer["replaced"].update(_REPLACED.findall(text))
    names = {flag[2:] for flag in flags} | {field.replace("_", "-") for field in derived}
    answer["arguments"] = sorted(names)
    declared = {field for field in fields if field.replace("_", "-") in names}
    answer["unread"] = _unread(srt, declared, {*declaring, srt / "arg_groups" / "field_order.py"})


def _unread(srt: Path, fields: Set[str], declaring: Set[Path]) -> Any:
    deadline = time.monotonic() + _READ_S
    wanted = set(fields)
    paths: List[Path] = sorted(srt.rglob("*.py"))
    for path in paths:
        if time.monotonic() > deadline:
            return None
        if path in declaring:
            if path.name == "server_args.py":
                # Declared here, but also used: only uses count.
                text = path.read_text(encoding="utf-8", errors="replace")
                wanted -= set(re.findall(r"(?:self|args|server_args|cfg)\.([a-z]\w+)", text))
            continue
        wanted -= set(_WORD.findall(path.read_text(encoding="utf-8", errors="replace")))
    return sorted(name.replace("_", "-") for name in wanted)
