"""What clients send: bodies, prompts and limits, checked with sglang's words."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from .sequence import tokenize

if TYPE_CHECKING:
    from .http import Request
    from .profiles import Model

__all__ = ["BadInput", "Wish", "chat_text", "json_body", "read_prompts", "read_wish"]

_NAN_AFTER = 3


class BadInput(ValueError):
    """What the client sent cannot be served; the message is for the client."""


class Wish:
    """How much to generate, and with which reason it ends."""

    def __init__(self, tokens: int, finish: dict[str, object]) -> None:
        self.tokens = tokens
        self.finish = finish


def json_body(request: Request) -> dict[str, Any]:
    """The body, which must be a JSON object; nothing counts as an empty one."""
    try:
        body = json.loads(request.body or b"{}")
    except ValueError as error:
        raise BadInput(f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise BadInput("the body must be a JSON object")
    return body


def read_prompts(text: Any, ids: Any, vocab: int) -> tuple[list[tuple[int, ...]], bool]:
    """Prompts as token ids, from text or ids, and whether they came as a batch."""
    if (ids is None) == (text is None):
        raise BadInput("Either text, input_ids or input_embeds should be provided.")
    if text is not None:
        texts = text if isinstance(text, list) else [text]
        if not texts or not all(isinstance(item, str) for item in texts):
            raise BadInput("text must be a string or a list of strings")
        return [tokenize(item, vocab) or (0,) for item in texts], isinstance(text, list)
    if not isinstance(ids, list) or not ids:
        raise BadInput("input_ids must be a list of token ids")
    batch = isinstance(ids[0], list)
    rows = ids if batch else [ids]
    for row in rows:
        if not isinstance(row, list) or not row or not all(type(item) is int for item in row):
            raise BadInput("input_ids must be integers")
        if min(row) < 0 or max(row) >= vocab:
            raise BadInput(f"input_ids contains token ids outside of the vocabulary (0 to {vocab - 1})")
    return [tuple(row) for row in rows], batch


def read_wish(
    params: dict[str, Any], key: str, prompt: tuple[int, ...], model: Model, context: int, *, nan: bool
) -> Wish:
    """How much to generate for ``prompt``; ``key`` is the interface's name for the limit."""
    limit = params.get(key)
    limit = 128 if limit is None else limit
    if type(limit) is not int or limit < 0:
        raise BadInput(f"{key} must be a number that is not negative, got {limit!r}")
    if len(prompt) >= context:
        raise BadInput(
            f"The input ({len(prompt)} tokens) is longer than the model's context length ({context} tokens)."
        )
    limit = min(limit, context - len(prompt)) or 1
    if nan:
        return Wish(min(limit, _NAN_AFTER), {"type": "stop", "matched": "NaN happened"})
    least = params.get("min_new_tokens") or params.get("min_tokens") or 1
    if not params.get("ignore_eos") and (ends := max(_eos_after(prompt, model.eos_mean_tokens), int(least))) < limit:
        return Wish(ends, {"type": "stop", "matched": model.eos_token})
    return Wish(limit, {"type": "length", "length": limit})


def chat_text(messages: Any) -> str:
    """The messages of a chat as one text, as a chat template would put them."""
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise BadInput("messages must be a list of messages")
    return "".join(f"<|{m.get('role')}|>{_content(m.get('content'))}" for m in messages) + "<|assistant|>"


def _content(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")


def _eos_after(prompt: tuple[int, ...], mean: float) -> int:
    """After how many tokens a model that may stop does: fixed for a prompt, geometric over prompts."""
    share = (hash((7919, *prompt)) % 1_000_003 + 0.5) / 1_000_003
    return 1 + int(-math.log(share) * mean)
