"""What a trial is asked to do: the order that arrives on standard input, checked once and then trusted."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Mapping, Optional, Tuple
from urllib.parse import urlsplit

from ._lengths import Lengths

APIS = ("generate", "completions", "chat")
ARRIVALS = ("closed", "constant", "poisson", "gamma", "burst", "trace")
EVENT_LOOPS = ("auto", "asyncio", "uvloop")


class SpecError(ValueError):
    """The order cannot be carried out as written; the message names the key and what was expected."""


@dataclasses.dataclass(frozen=True)
class Arrival:
    """When requests are sent.

    ``closed`` keeps ``concurrency`` requests in flight. The open patterns send on a schedule of their own,
    whatever the server does: ``constant``, ``poisson`` and ``gamma`` at ``rate`` requests a second
    (``burstiness`` is the gamma shape: 1 is Poisson, below 1 is burstier), ``burst`` sends ``size`` requests
    together every ``period_s``, ``trace`` replays the file ``path``. ``max_concurrency`` caps what an open
    pattern may have in flight; a request held back by it is late by the schedule, and its latency says so.
    """

    kind: str
    concurrency: int = 1
    rate: float = 0.0
    burstiness: float = 1.0
    size: int = 1
    period_s: float = 1.0
    path: str = ""
    max_concurrency: Optional[int] = None

    @property
    def most_streams(self) -> int:
        """How many connections may be needed at once, as far as can be known before."""
        if self.closed:
            return self.concurrency
        return self.max_concurrency or max(2048, 2 * self.size)

    @property
    def closed(self) -> bool:
        """Whether the next request waits for an earlier one to finish."""
        return self.kind == "closed"


@dataclasses.dataclass(frozen=True)
class Limits:
    """Bounds of a valid trial; seconds and milliseconds are real ones, never simulated."""

    stall_s: float = 60.0
    silent_s: float = 20.0  # for the agent, which sees the server's log and processes as well
    deadline_s: float = 3600.0
    max_cached_share: float = 0.01
    max_failed_share: float = 0.05
    max_short_share: float = 0.01
    max_constant_share: float = 0.5
    lag_p50_ms: float = 2.0
    lag_p50_share: float = 0.1
    lag_p99_ms: float = 25.0
    lag_share: float = 0.25
    cpu_share: float = 0.9
    schedule_lag_p99_ms: float = 25.0
    delivered_share: float = 0.95
    server_share: float = 0.5


@dataclasses.dataclass(frozen=True)
class Dialect:
    """What an OpenAI-compatible server understands beyond the common core; learnt, never ordered.

    ``ids``: prompts as token ids (completions only). ``continuous_usage``: counts in every event. ``usage``: a count
    at the end. ``tokens_per_word`` and ``template_tokens`` turn a length in tokens into words of text where ids
    are not taken.
    """

    ids: bool = True
    usage: bool = True
    continuous_usage: bool = True
    ignore_eos: bool = True
    tokens_per_word: float = 1.0
    template_tokens: float = 0.0

    def words(self, tokens: int) -> int:
        """How many ids, or words, make a prompt of this many tokens."""
        if self.tokens_per_word == 1.0 and not self.template_tokens:
            return tokens
        return max(1, round((tokens - self.template_tokens) / self.tokens_per_word))

    def describe(self) -> str:
        """For the audit."""
        parts = ["token ids" if self.ids else f"text, {self.tokens_per_word:.3g} tokens a word"]
        counts = (
            "no usage" if not self.usage else "usage in every event" if self.continuous_usage else "usage at the end"
        )
        parts.append(counts)
        if not self.ignore_eos:
            parts.append("no ignore_eos: answers may be short")
        return ", ".join(parts)


@dataclasses.dataclass(frozen=True)
class Spec:
    """One trial. Keys and meaning are those of ``docs/reference/load-spec.md``."""

    url: str
    api: str
    arrival: Arrival
    input: Lengths
    output: Lengths
    requests: int
    model: Optional[str] = None
    api_key_env: Optional[str] = None
    ramp_s: float = 0.0
    warmup: Optional[int] = None
    shared_prefix: int = 0
    vocab: Optional[Tuple[int, int]] = None
    seed: int = 0
    salt: str = ""
    flush_cache: bool = True
    limits: Limits = dataclasses.field(default_factory=Limits)
    workers: Optional[int] = None
    sampling: Mapping[str, Any] = dataclasses.field(default_factory=lambda: {"temperature": 0, "ignore_eos": True})
    keep_bodies: bool = False
    records_path: Optional[str] = None
    time_scale: float = 1.0
    event_loop: str = "auto"
    probe_server: bool = True
    stamped: bool = False
    tool: Optional[str] = None
    tool_python: Optional[str] = None
    dialect: Dialect = dataclasses.field(default_factory=Dialect)
    peek_path: Optional[str] = None

    @property
    def warmup_requests(self) -> int:
        """How many requests come before the window: by default as many as run together."""
        if self.warmup is not None:
            return self.warmup
        if self.arrival.closed:
            return self.arrival.concurrency
        return self.arrival.size if self.arrival.kind == "burst" else 1

    @property
    def window_requests(self) -> int:
        """Completions that close the window: ``requests``, rounded up to whole rounds of a closed loop.

        Requests of one length run in waves. A window of whole rounds begins and ends at the same phase of
        the wave, so that neither an extra prefill nor an extra decode phase is counted.
        """
        if self.arrival.closed:
            level = self.arrival.concurrency
            return -(-self.requests // level) * level
        if self.arrival.kind == "burst":
            size = self.arrival.size
            return -(-self.requests // size) * size
        return self.requests


def _number(data: Mapping[str, Any], key: str, default: Any, *, above: float = 0, whole: bool = False) -> Any:
    value = data.get(key, default)
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not value >= above:
        kind = "a whole number" if whole else "a number"
        raise SpecError(f"{key}: expected {kind} of at least {above}, got {value!r}")
    return value


def _arrival(data: Mapping[str, Any]) -> Arrival:
    kind = data.get("kind")
    if kind not in ARRIVALS:
        raise SpecError("arrival.kind: expected one of {}, got {!r}".format(", ".join(ARRIVALS), kind))
    known = {field.name for field in dataclasses.fields(Arrival)}
    unknown = sorted(set(data) - known)
    if unknown:
        raise SpecError("arrival: unknown key {}".format(", ".join(unknown)))
    arrival = Arrival(
        kind=kind,
        concurrency=_number(data, "concurrency", 1, above=1, whole=True),
        rate=float(_number(data, "rate", 0)),
        burstiness=float(_number(data, "burstiness", 1.0)),
        size=_number(data, "size", 1, above=1, whole=True),
        period_s=float(_number(data, "period_s", 1.0)),
        path=str(data.get("path") or ""),
        max_concurrency=None
        if data.get("max_concurrency") is None
        else _number(data, "max_concurrency", 1, above=1, whole=True),
    )
    if kind in ("constant", "poisson", "gamma") and not arrival.rate > 0:
        raise SpecError(f"arrival.rate: {kind} needs a rate above 0 (requests a second)")
    if kind == "gamma" and not arrival.burstiness > 0:
        raise SpecError("arrival.burstiness: expected a number above 0")
    if kind == "burst" and not arrival.period_s > 0:
        raise SpecError("arrival.period_s: expected a number above 0")
    if kind == "trace" and not arrival.path:
        raise SpecError("arrival.path: a trace needs the path of its file")
    return arrival


def _limits(data: Mapping[str, Any]) -> Limits:
    known = {field.name for field in dataclasses.fields(Limits)}
    unknown = sorted(set(data) - known)
    if unknown:
        raise SpecError("limits: unknown key {} (known: {})".format(", ".join(unknown), ", ".join(sorted(known))))
    values = {key: float(_number(data, key, 0)) for key in data if data[key] is not None}
    return Limits(**values)


def _vocab(value: Any) -> Tuple[int, int]:
    low, high = value if isinstance(value, (list, tuple)) and len(value) == 2 else (None, None)
    if not isinstance(low, int) or not isinstance(high, int) or not 0 <= low < high:
        raise SpecError(f"vocab: expected [low, high], the token ids that prompts draw from, got {value!r}")
    return low, high


def _tool(data: Mapping[str, Any]) -> Optional[str]:
    tool = data.get("tool")
    if tool not in (None, "sglang-bench"):
        raise SpecError(f"tool: expected sglang-bench (or nothing, for our own engine), got {tool!r}")
    if tool and not data.get("tool_python"):
        raise SpecError("tool_python: expected the path of the Python that sglang is installed in")
    return tool


def _warmup(value: Any) -> Optional[int]:
    if value is None:
        return None
    if isinstance(value, Mapping):
        return _warmup(value.get("requests"))
    return int(_number({"warmup.requests": value}, "warmup.requests", 0, whole=True))


def parse(data: Mapping[str, Any]) -> Spec:
    """Check an order and turn it into a :class:`Spec`.

    Raises:
        SpecError: an unknown key, a missing one, or a value out of range.
    """
    known = {field.name for field in dataclasses.fields(Spec)} - {"dialect", "peek_path"}
    unknown = sorted(set(data) - known)
    if unknown:
        raise SpecError("unknown key {}".format(", ".join(unknown)))
    missing = [key for key in ("url", "arrival", "input", "output", "requests") if data.get(key) is None]
    if missing:
        raise SpecError("missing key {}".format(", ".join(missing)))
    parts = urlsplit(str(data["url"]))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SpecError("url: expected http://host:port, got {!r}".format(data["url"]))
    choices: List[Tuple[str, Tuple[str, ...], str]] = [
        ("api", APIS, "generate"),
        ("event_loop", EVENT_LOOPS, "auto"),
    ]
    chosen: Dict[str, str] = {}
    for key, allowed, default in choices:
        chosen[key] = data.get(key) or default
        if chosen[key] not in allowed:
            raise SpecError("{}: expected one of {}, got {!r}".format(key, ", ".join(allowed), data[key]))
    sampling = data.get("sampling")
    if sampling is None:
        sampling = {"temperature": 0, "ignore_eos": True}
    if not isinstance(sampling, Mapping):
        raise SpecError(f"sampling: expected an object, got {sampling!r}")
    workers = data.get("workers")
    try:
        inputs, outputs = Lengths.parse(data["input"]), Lengths.parse(data["output"])
    except ValueError as error:
        raise SpecError(str(error)) from None
    return Spec(
        url=str(data["url"]).rstrip("/"),
        api=chosen["api"],
        arrival=_arrival(data["arrival"]),
        input=inputs,
        output=outputs,
        requests=_number(data, "requests", None, above=1, whole=True),
        model=data.get("model"),
        api_key_env=data.get("api_key_env"),
        ramp_s=float(_number(data, "ramp_s", 0)),
        warmup=_warmup(data.get("warmup")),
        shared_prefix=_number(data, "shared_prefix", 0, whole=True),
        vocab=None if data.get("vocab") is None else _vocab(data["vocab"]),
        seed=_number(data, "seed", 0, above=-(2**63), whole=True),
        salt=str(data.get("salt") or ""),
        flush_cache=bool(data.get("flush_cache", True)),
        limits=_limits(data.get("limits") or {}),
        workers=None if workers is None else _number(data, "workers", 1, above=1, whole=True),
        sampling=dict(sampling),
        keep_bodies=bool(data.get("keep_bodies", False)),
        records_path=data.get("records_path"),
        time_scale=float(_number(data, "time_scale", 1.0, above=1e-9)),
        event_loop=chosen["event_loop"],
        probe_server=bool(data.get("probe_server", True)),
        stamped=bool(data.get("stamped", False)),
        tool=_tool(data),
        tool_python=data.get("tool_python"),
    )
