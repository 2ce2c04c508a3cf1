"""All crash classes, in order of priority, and the search for them in a line."""

from __future__ import annotations

import re
from functools import lru_cache

from ._classes_device import DEVICE_CLASSES
from ._classes_launch import LAUNCH_CLASSES
from ._classes_process import PROCESS_CLASSES
from ._crash_class import CrashClass, Depth
from ._literals import required_words

__all__ = ["CLASSES", "CrashClass", "Depth", "crash_class", "search_classes", "suspicious"]

CLASSES: tuple[CrashClass, ...] = (*LAUNCH_CLASSES, *DEVICE_CLASSES, *PROCESS_CLASSES)
"""In order of priority: where one traceback fits several of the same depth, the first of them is taken."""

_NPU_CODE = re.compile(r"E[A-Z]\d{4}: ")
_BY_NAME = {entry.name: entry for entry in CLASSES}
ORDER = {entry.name: order for order, entry in enumerate(CLASSES)}


def _joined(patterns: tuple[str, ...]) -> re.Pattern[str]:
    # A group name may occur once in an expression, so every alternative gets its own.
    numbered = (p.replace("(?P<detail>", f"(?P<detail{index}>") for index, p in enumerate(patterns))
    return re.compile("|".join(f"(?:{pattern})" for pattern in numbered))


def _words(entry: CrashClass) -> tuple[str, ...]:
    words = [required_words(pattern) for pattern in entry.patterns]
    if None in words:
        return ("",)  # in every line: this class is always tried
    return tuple(dict.fromkeys(word for some in words for word in some or ()))


_NUMBERS = re.compile(r"\b[0-9a-f]{8,}\b|\d+")


def _shape(text: str) -> str:
    """The text without what differs between complaints of the same kind: numbers and hexadecimal ids."""
    return _NUMBERS.sub("0", text)


_SEARCH = tuple(
    (entry, tuple(map(_shape, _words(entry))), _joined(entry.patterns)) for entry in CLASSES if entry.patterns
)


# Flat, so that a line of a new shape costs one pass: a word, and the place of its class in the table.
_WORDS = tuple((word, place) for place, (_, words, _) in enumerate(_SEARCH) for word in words)


def crash_class(name: str) -> CrashClass:
    """The class of this name. Raises `KeyError` for a name that does not exist."""
    return _BY_NAME[name]


def suspicious(text: str) -> bool:
    """Whether any class can match this line: a cheap test that spares most lines all regular expressions.

    Every pattern contains one of these words; a test holds the two together.
    """
    return (
        "rror" in text
        or "ail" in text
        or "ERR" in text
        or "emory" in text
        or "xcept" in text
        or "nsupported" in text
        or "not " in text
        or "No " in text
        or "n't" in text
        or "died" in text
        or "dead" in text
        or "crash" in text
        or "tim" in text
        or "Tim" in text
        or "lost" in text
        or "CUDA" in text
        or "atal" in text
        or "NaN" in text
        or "nan" in text
        or "ssert" in text
        or "STATUS_" in text
        or "Xid" in text
        or "kill" in text
        or "Kill" in text
        or "OOM" in text
        or "oom" in text
        or "require" in text
        or "server_args.py" in text
        or "/arg_groups/" in text
        or "enied" in text
        or "nable " in text
        or "Broken pipe" in text
        or "exited" in text
        or "terminat" in text
        or "symbol" in text
        or "resource" in text
        or "Access to" in text
        or "Repo id" in text
        or "upgrade" in text
        or "Minimum" in text
        or "ttempted" in text
        or "reinstall" in text
        or "fallen" in text
        or "Segf" in text
        or "HSA_STATUS" in text
        or _NPU_CODE.search(text) is not None
    )


@lru_cache(maxsize=4096)
def _candidates(shape: str) -> tuple[tuple[CrashClass, re.Pattern[str]], ...]:
    """The classes of which a line of this shape has a required word."""
    places = {place for word, place in _WORDS if word in shape}
    return tuple((_SEARCH[place][0], _SEARCH[place][2]) for place in sorted(places))


@lru_cache(maxsize=4096)
def search_classes(text: str) -> tuple[tuple[CrashClass, str], ...]:
    """Every class that matches ``text``, in order of priority, with the detail that its pattern picked out.

    Remembered, because what fills gigabytes of log is a few complaints repeated.
    """
    found = []
    for entry, pattern in _candidates(_shape(text)):
        match = pattern.search(text)
        if match is not None:
            detail = next((value for value in match.groupdict().values() if value), "")
            found.append((entry, detail.strip(" .,;:")))
    return tuple(found)
