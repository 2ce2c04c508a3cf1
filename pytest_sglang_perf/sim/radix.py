"""The prefix cache: a radix tree over token ids, least recently used leaves go first.

Like sglang's with a page size of 1: any common prefix counts, and of a prompt that is cached whole the last
token is computed anyway.
"""

from __future__ import annotations

import heapq
from itertools import count

__all__ = ["RadixCache"]


class _Node:
    __slots__ = ("children", "parent", "tokens", "used")

    def __init__(self, tokens: tuple[int, ...], parent: _Node | None, used: int) -> None:
        self.tokens = tokens
        self.parent = parent
        self.children: dict[int, _Node] = {}
        self.used = used


class RadixCache:
    """Token sequences that need not be computed again."""

    def __init__(self) -> None:
        self._clock = count(1)
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._root = _Node((), None, 0)
        self.size = 0

    def match(self, tokens: tuple[int, ...]) -> int:
        """How many leading tokens of a prompt are cached and reusable: at most all but one."""
        return min(self._walk(tokens)[2], max(len(tokens) - 1, 0))

    def insert(self, tokens: tuple[int, ...]) -> int:
        """Add a sequence; returns how many tokens of it are new."""
        node, within, matched = self._walk(tokens)
        if within < len(node.tokens):
            node = self._split(node, within)
        rest = tokens[matched:]
        if rest:
            node.children[rest[0]] = _Node(rest, node, next(self._clock))
            self.size += len(rest)
        return len(rest)

    def evict(self, tokens: int) -> int:
        """Give up at least ``tokens`` tokens, if there are so many; returns how many."""
        leaves = [(leaf.used, id(leaf), leaf) for leaf in self._leaves()]
        heapq.heapify(leaves)
        freed = 0
        while leaves and freed < tokens:
            _, _, leaf = heapq.heappop(leaves)
            parent = leaf.parent
            if parent is None:
                break
            freed += len(leaf.tokens)
            del parent.children[leaf.tokens[0]]
            if not parent.children and parent.parent is not None:
                heapq.heappush(leaves, (parent.used, id(parent), parent))
        self.size -= freed
        return freed

    def _walk(self, tokens: tuple[int, ...]) -> tuple[_Node, int, int]:
        """The last node that shares tokens, how many of its own it shares, and how many in all."""
        node, done, within, used = self._root, 0, 0, next(self._clock)
        while done < len(tokens) and within == len(node.tokens):
            child = node.children.get(tokens[done])
            if child is None:
                break
            child.used = used
            within = _common(child.tokens, tokens, done)
            done += within
            node = child
        return node, within, done

    @staticmethod
    def _split(node: _Node, at: int) -> _Node:
        parent = node.parent
        assert parent is not None
        upper = _Node(node.tokens[:at], parent, node.used)
        parent.children[upper.tokens[0]] = upper
        node.tokens = node.tokens[at:]
        node.parent = upper
        upper.children[node.tokens[0]] = node
        return upper

    def _leaves(self) -> list[_Node]:
        found, stack = [], list(self._root.children.values())
        while stack:
            node = stack.pop()
            if node.children:
                stack.extend(node.children.values())
            else:
                found.append(node)
        return found


def _common(part: tuple[int, ...], tokens: tuple[int, ...], start: int) -> int:
    """How many tokens ``part`` shares with ``tokens`` from ``start`` on."""
    if part == tokens[start : start + len(part)]:
        return len(part)
    length = 0
    for ours, theirs in zip(part, tokens[start : start + len(part)], strict=False):
        if ours != theirs:
            break
        length += 1
    return length
