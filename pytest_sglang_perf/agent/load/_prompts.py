"""Prompts as token ids, made fast, never alike, and the same again for the same seed and salt.

Every prompt begins with a number that no other prompt of the trial has (written in base "size of the vocabulary"),
so that a prefix cache finds nothing; random first tokens do collide. The rest is a stretch of one random pool:
a prefix cache cannot use what repeats behind a different beginning.
"""

from __future__ import annotations

import math
import random
from typing import List

_POOL = 1 << 16


class PromptSource:
    """Makes the token ids of the prompt of each request.

    Args:
        vocab: first and last token id that may be used.
        seed: chooses the lengths' and the pool's random numbers.
        salt: makes the prompts of this trial differ from those of another one with the same seed.
        shared: how many tokens at the beginning are the same for all prompts, on purpose.
    """

    __slots__ = ("_high", "_low", "_offset", "_pool", "_shared", "_size", "_step", "_width")

    def __init__(self, low: int, high: int, *, seed: int, salt: str, shared: int = 0) -> None:
        rng = random.Random(f"{seed}/{salt}")
        self._low = low
        self._size = high - low + 1
        self._width = math.ceil(32 / math.log2(self._size))  # digits of the largest number of requests, 2**32
        self._offset = rng.randrange(self._size)
        self._step = _coprime(rng, self._size)
        self._pool: List[str] = [str(token) for token in rng.choices(range(low, high + 1), k=_POOL)]
        self._shared = ",".join(self._pool[i % _POOL] for i in range(shared)).encode()
        if shared:
            self._shared += b","

    def ids(self, index: int, length: int) -> bytes:
        """Comma-separated ids of prompt ``index``: the shared beginning, then ``length`` tokens of its own."""
        size, number = self._size, index
        head: List[str] = []
        while len(head) < min(length, self._width):
            number, digit = divmod(number, size)
            head.append(str(self._low + (digit * self._step + self._offset) % size))
        left = length - len(head)
        start = (index * 7919) % _POOL
        body = self._pool[start : start + left]
        while len(body) < left:
            body += self._pool[: left - len(body)]
        return self._shared + ",".join(head + body).encode()


def _coprime(rng: random.Random, size: int) -> int:
    """A step that visits every residue once, so that neighbouring requests do not get neighbouring tokens."""
    if size < 3:
        return 1
    while True:
        step = rng.randrange(1, size)
        a, b = step, size
        while b:
            a, b = b, a % b
        if a == 1:
            return step
