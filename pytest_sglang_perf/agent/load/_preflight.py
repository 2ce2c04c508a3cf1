"""Before the clock starts: an empty prefix cache, and which dialect of the OpenAI protocol this server speaks."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from ._decode import Decoder
from ._http import ask
from ._peek import find_path
from ._requests import PATHS, RequestFactory
from ._spec import Dialect
from ._vocabulary import choose

if TYPE_CHECKING:
    from ._spec import Spec

_FLUSH_WAIT_S = 15.0
_PAUSE_S = 0.1
_PROBE_TOKENS = 4
_CALIBRATION_WORDS = (32, 160)

# Most capable first. Servers refuse what they do not know, each in its own way, so the question is put by trying.
_DIALECTS = (
    Dialect(),
    Dialect(continuous_usage=False),
    Dialect(ids=False),
    Dialect(ids=False, continuous_usage=False),
    Dialect(ids=False, continuous_usage=False, ignore_eos=False),
    Dialect(ids=False, continuous_usage=False, ignore_eos=False, usage=False),
)


def preflight(spec: Spec, salt: str) -> Tuple[Spec, Dict[str, Any]]:
    """Prepare the server and learn how to speak to it.

    Returns:
        The order with what was learnt (model, dialect, words per token), and notes for the audit.
    """
    notes: Dict[str, Any] = {}
    vocab, notes["vocab_from"] = choose(spec)
    spec = dataclasses.replace(spec, vocab=vocab)
    if spec.api != "generate":
        if spec.model is None:
            spec = dataclasses.replace(spec, model=_first_model(spec))
        spec, notes["dialect"] = _learn(spec, salt)
    if spec.probe_server:
        spec = dataclasses.replace(spec, peek_path=find_path(spec))
        notes["server_running_from"] = spec.peek_path
    if spec.flush_cache:
        notes["flush_cache"] = flush_cache(spec)
    return spec, notes


def flush_cache(spec: Spec) -> str:
    """Empty sglang's prefix cache; say what came of it.

    A server refuses (400) while requests run, for instance those that an earlier trial has just aborted, so
    it is asked again for a while. Servers other than sglang have no such endpoint: ``unsupported``.
    """
    until = time.monotonic() + _FLUSH_WAIT_S
    while True:
        try:
            status, _ = ask(spec, "POST", "/flush_cache")
        except OSError as error:
            return f"no answer: {error}"
        if status == 200:
            return "flushed"
        if status in (404, 405, 501):
            return "unsupported"
        if time.monotonic() > until:
            return f"refused: HTTP {status}"
        time.sleep(_PAUSE_S)


def _first_model(spec: Spec) -> Optional[str]:
    """The first model that the server offers; None where it does not say."""
    try:
        status, body = ask(spec, "GET", "/v1/models")
        return str(json.loads(body)["data"][0]["id"]) if status == 200 else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _learn(spec: Spec, salt: str) -> Tuple[Spec, str]:
    """Try dialects until one is answered; then measure how many tokens a word of text is.

    A server that answers none of them is left to the trial, whose errors say why.
    """
    candidates: List[Dialect] = [d for d in _DIALECTS if spec.api != "chat" or not d.ids]
    for dialect in candidates:
        trial = dataclasses.replace(spec, dialect=dialect)
        answer = _probe(trial, salt, 16, 1)
        if answer is None:
            continue
        learnt = dialect if dialect.ids else _calibrate(trial, salt)
        return dataclasses.replace(spec, dialect=learnt), learnt.describe()
    return dataclasses.replace(spec, dialect=candidates[0]), "unknown: no probe was answered"


def _calibrate(spec: Spec, salt: str) -> Dialect:
    """Prompt tokens as a straight line of words: the chat template's own tokens, and tokens a word."""
    few, many = _CALIBRATION_WORDS
    low, high = (_probe(spec, salt, words, number) for number, words in enumerate(_CALIBRATION_WORDS, 2))
    if not low or not high or high <= low:
        return spec.dialect
    slope = (high - low) / (many - few)
    return dataclasses.replace(spec.dialect, tokens_per_word=slope, template_tokens=low - slope * few)


def _probe(spec: Spec, salt: str, words: int, number: int) -> Optional[int]:
    """Prompt tokens of one short request (0 if not reported); None if it was refused."""
    factory = RequestFactory(spec, f"{salt}/preflight")
    body = factory.body(number, words, _PROBE_TOKENS)
    try:
        status, answer = ask(spec, "POST", PATHS[spec.api], body=body, timeout_s=60.0)
    except OSError:
        return None
    if status != 200:
        return None
    decoder = Decoder()
    decoder.feed(0, answer)
    decoder.finish(0)
    return None if decoder.error else int(decoder.summary()["prompt_tokens"] or 0)
