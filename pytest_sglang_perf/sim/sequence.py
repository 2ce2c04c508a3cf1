"""One request inside the server: its prompt, what it will generate, and how far it is.

Tokens are drawn from a fixed pool at an offset that follows from the prompt: the same prompt gives the same
answer, as greedy decoding does, and no token costs more than a list slice.
"""

from __future__ import annotations

import enum
import random
import re
import zlib
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Reply", "Sequence", "State", "TokenPool", "tokenize"]

_T = TypeVar("_T")
_POOL = 1 << 15
_PIECE = re.compile(r"\s?\w{1,4}|\s|[^\w\s]")


class State(enum.Enum):
    """Where a request is."""

    WAITING = "waiting"
    PREFILL = "prefill"
    RUNNING = "running"
    DONE = "done"


class Reply(Protocol):
    """Where the tokens of a request go."""

    def tokens(self, sequence: Sequence, *, finished: bool) -> None:
        """``sequence.generated`` has grown since the last call; ``finished`` with the last token."""

    def failed(self, sequence: Sequence, message: str, code: int) -> None:
        """The request ends with an error instead of its next tokens."""


class Sequence:
    """One request. Times are simulated seconds."""

    __slots__ = (
        "arrived",
        "base",
        "cached",
        "credit",
        "due",
        "emitted",
        "finish",
        "generated",
        "join_step",
        "offset",
        "prefilled",
        "prompt",
        "ready",
        "reply",
        "retractions",
        "rid",
        "state",
        "turnaround_s",
        "will_make",
    )

    def __init__(
        self, rid: str, prompt: tuple[int, ...], will_make: int, finish: dict[str, object], reply: Reply
    ) -> None:
        self.rid = rid
        self.prompt = prompt
        self.will_make = will_make
        self.finish = finish
        self.reply = reply
        self.state = State.WAITING
        self.arrived = self.ready = 0.0
        self.turnaround_s = 0.0
        self.credit = 0
        self.cached = 0
        self.prefilled = 0
        self.generated = 0
        self.emitted = 0
        self.retractions = 0
        self.base = 0
        self.join_step = 0
        self.due = 0
        self.offset = prompt_offset(prompt)

    @property
    def length(self) -> int:
        """Tokens of prompt and answer so far: what it holds of the KV cache while it runs."""
        return len(self.prompt) + self.generated


class TokenPool:
    """Token ids and their text, as strings that are ready to be joined."""

    def __init__(self, vocab_size: int, *, constant: bool = False) -> None:
        rng = random.Random(20260219)
        low = min(256, vocab_size // 2)
        numbers = [0] * _POOL if constant else [rng.randrange(low, vocab_size) for _ in range(_POOL)]
        words = _words()
        pieces = ["!" if constant else words[number % len(words)] for number in numbers]
        # Twice over, so that a slice from any offset needs no wrap for up to a pool's length.
        self._numbers = numbers * 2
        self._ids = [str(number) for number in numbers] * 2
        self._text = pieces * 2

    def ids(self, sequence: Sequence, start: int, end: int) -> str:
        """Generated token ids ``start`` to ``end`` of a sequence, joined by commas."""
        return ",".join(_slice(self._ids, sequence.offset, start, end))

    def text(self, sequence: Sequence, start: int, end: int) -> str:
        """Their text: plain ASCII words that need no escape in JSON."""
        return "".join(_slice(self._text, sequence.offset, start, end))

    def numbers(self, sequence: Sequence, start: int, end: int) -> tuple[int, ...]:
        """Generated token ids as integers."""
        return tuple(_slice(self._numbers, sequence.offset, start, end))


def _slice(pool: list[_T], offset: int, start: int, end: int) -> Iterable[_T]:
    if end - start <= _POOL:
        first = (offset + start) % _POOL
        return pool[first : first + end - start]
    return (pool[(offset + index) % _POOL] for index in range(start, end))


def prompt_offset(prompt: tuple[int, ...]) -> int:
    """Where in the pool the answer to ``prompt`` starts."""
    return hash(prompt) % _POOL


def tokenize(text: str, vocab_size: int) -> tuple[int, ...]:
    """Token ids for ``text``: about four letters a token, the same text always the same ids."""
    return tuple(zlib.crc32(piece.encode()) % vocab_size for piece in _PIECE.findall(text))


def _words() -> list[str]:
    def syllables() -> Iterator[str]:
        for consonant in "bdfgklmnprst":
            for vowel in "aeiou":
                yield consonant + vowel

    parts = list(syllables())
    return [f" {first}{second}" for first in parts for second in parts]
