"""The suite file's schema. What is checked is said here; how errors read is ``_validate.py``."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from pytest_sglang_perf.suite.nodes import Api, Node, Seconds, _Model

__all__ = ["Arrival", "Length", "Limits", "ServerModel", "SuiteModel", "WorkloadModel"]

Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0)]
Scalar = bool | int | float | str
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._+-]*$"


def _name(value: Any) -> Any:
    if isinstance(value, str) and not re.match(_NAME, value):
        raise PydanticCustomError(
            "expected",
            "a name may have letters, digits and . _ + - and begins with a letter or digit "
            "(it becomes a file name and a part of test ids)",
        )
    return value


Name = Annotated[str, BeforeValidator(_name), WithJsonSchema({"type": "string", "pattern": _NAME})]


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else value


def _distinct(values: list[Any]) -> list[Any]:
    for value in values:
        if values.count(value) > 1:
            level = f"{value:g}"
            raise PydanticCustomError("expected", "the level {level} is listed twice", {"level": level})
    return values


def _levels_schema(item: dict[str, Any]) -> WithJsonSchema:
    many = {"type": "array", "items": item, "minItems": 1, "uniqueItems": True}
    return WithJsonSchema({"anyOf": [item, many]})


CountLevels = Annotated[
    list[Count],
    Field(min_length=1),
    BeforeValidator(_as_list),
    AfterValidator(_distinct),
    _levels_schema({"type": "integer", "minimum": 1}),
]
RateLevels = Annotated[
    list[Rate],
    Field(min_length=1),
    BeforeValidator(_as_list),
    AfterValidator(_distinct),
    _levels_schema({"type": "number", "exclusiveMinimum": 0}),
]


def _as_range(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return [value, value]
    if not isinstance(value, list):
        raise PydanticCustomError("expected", "expected a number such as 1, or [first, most]")
    return value


def _rising(values: list[int]) -> list[int]:
    if values[0] > values[1]:
        raise PydanticCustomError("expected", "expected [first, most] with first no larger than most")
    return values


Boots = Annotated[
    list[Count],
    Field(min_length=2, max_length=2),
    BeforeValidator(_as_range),
    AfterValidator(_rising),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 2, "maxItems": 2},
            ]
        }
    ),
]


# --- lengths in tokens


class FixedLength(_Model):
    kind: Literal["fixed"]
    value: Count


class _Bounded(_Model):
    @model_validator(mode="after")
    def _ordered(self) -> _Bounded:
        low, high = getattr(self, "low", None), getattr(self, "high", None)
        if low is not None and high is not None and low > high:
            raise PydanticCustomError("expected", "low ({low}) is above high ({high})", {"low": low, "high": high})
        return self


class UniformLength(_Bounded):
    kind: Literal["uniform"]
    low: Count
    high: Count


class NormalLength(_Bounded):
    kind: Literal["normal"]
    mean: Annotated[float, Field(ge=1)]
    std: Annotated[float, Field(ge=0)]
    low: Count = 1
    high: Count | None = None


class FileLength(_Model):
    kind: Literal["file"]
    path: str = Field(min_length=1, description="One length a line; relative to the suite file.")


def _length(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return {"kind": "fixed", "value": value}
    if not isinstance(value, dict):
        raise PydanticCustomError(
            "expected",
            "expected a number of tokens, or a mapping such as {kind: uniform, low: 64, high: 256}",
        )
    return value


_AnyLength = Annotated[FixedLength | UniformLength | NormalLength | FileLength, Field(discriminator="kind")]
Length = Annotated[_AnyLength, BeforeValidator(_length, json_schema_input_type=Count | _AnyLength)]


# --- arrivals: when requests are sent, and what a level means


class RateArrival(_Model):
    """An open loop: requests are sent at a rate, whether or not earlier ones are answered."""

    kind: Literal["constant", "poisson"]
    rate: RateLevels = Field(description="Requests a second; each rate is one level.")
    max_concurrency: Count | None = None


class GammaArrival(_Model):
    """An open loop with a chosen burstiness: below 1 burstier than Poisson, above 1 smoother."""

    kind: Literal["gamma"]
    rate: RateLevels = Field(description="Requests a second; each rate is one level.")
    burstiness: Annotated[float, Field(gt=0)]
    max_concurrency: Count | None = None


class BurstArrival(_Model):
    """Requests come in bursts."""

    kind: Literal["burst"]
    size: CountLevels = Field(description="Requests a burst; each size is one level.")
    period_s: Seconds
    max_concurrency: Count | None = None


class TraceArrival(_Model):
    """Requests are sent when a recorded trace says so; it has the one level 1."""

    kind: Literal["trace"]
    path: str = Field(min_length=1, description="The trace file; relative to the suite file.")
    max_concurrency: Count | None = None


Arrival = Annotated[RateArrival | GammaArrival | BurstArrival | TraceArrival, Field(discriminator="kind")]


Share = Annotated[float, Field(ge=0, le=1)]
Milliseconds = Annotated[float, Field(gt=0)]


class Limits(_Model):
    """When a trial is ended, and when it does not count. What is not set is the load engine's own default."""

    stall_s: Seconds = Field(60.0, description="No byte for so long fails a stream; on all streams, it ends the trial.")
    silent_s: Seconds = Field(
        20.0, description="No token and no word of the server's log for so long: it has frozen, and is booted afresh."
    )
    deadline_s: Seconds = Field(1800.0, description="The longest a trial may take.")
    max_cached_share: Share = Field(0.01, description="Share of prompt tokens that may come from the prefix cache.")
    max_failed_share: Share | None = Field(None, description="Share of requests that may give no usable answer.")
    max_short_share: Share | None = Field(
        None, description="Share of requests that may have fewer tokens than asked for although ignore_eos is set."
    )
    max_constant_share: Share | None = Field(
        None, description="Share of sampled answers that may be one token over and over."
    )
    lag_p50_ms: Milliseconds | None = Field(
        None, description="How long bytes may wait for the load engine's loop at the median, in real milliseconds."
    )
    lag_p50_share: Share | None = Field(
        None,
        description="The same as a share of the median time to first token, up to 20 ms; the larger of the two counts.",
    )
    lag_p99_ms: Milliseconds | None = Field(
        None, description="How long bytes may wait for the load engine's loop at p99, in real milliseconds."
    )
    lag_share: Share | None = Field(
        None,
        description="The same as a share of the median time to first token, up to 100 ms; the larger of the two "
        "counts. Also for schedule_lag_p99_ms.",
    )
    cpu_share: Share | None = Field(
        None, description="Share of its core that a load process may use, time spent waiting for the core included."
    )
    schedule_lag_p99_ms: Milliseconds | None = Field(
        None, description="How late requests of an open loop may be sent at p99, in real milliseconds."
    )
    delivered_share: Share | None = Field(
        None, description="Least share of the asked concurrency that must be in flight on average."
    )
    server_share: Share | None = Field(
        None,
        description="Least share of the asked concurrency, or of an open loop's requests in flight, that the server "
        "itself must say it has.",
    )


class WorkloadModel(_Model):
    """One workload as written."""

    description: str | None = None
    input_len: Length = Field(description="Prompt tokens: a number or a distribution.")
    output_len: Length = Field(description="Output tokens: a number or a distribution.")
    concurrency: CountLevels | None = Field(
        None, description="Closed loop: so many requests in flight at all times; each is one level."
    )
    arrival: Arrival | None = Field(None, description="Open loop, instead of concurrency.")
    requests: Count | dict[str, Count] | None = Field(
        None, description="Requests finished inside the steady window: for all levels, or by level."
    )
    warmup: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Requests before the steady window. Default: one for each in flight."
    )
    ramp_s: Annotated[float, Field(ge=0)] = Field(0.0, description="Seconds over which the load builds up.")
    api: Api = "generate"
    shared_prefix: Annotated[int, Field(ge=0)] = Field(
        0, description="Prompt tokens that all requests share; above 0 the cache check is off."
    )
    seed: Annotated[int, Field(ge=0)] = Field(1, description="Draws lengths, prompts and arrivals.")
    flush_cache: bool = Field(True, description="Empty the server's prefix cache before each trial.")
    vocab: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=2, max_length=2)] | None = Field(
        None, description="Prompt token ids are drawn from [low, high]. Default: the load engine's."
    )
    sampling: dict[str, Any] = Field(
        default_factory=dict, description="Sampling parameters on top of temperature 0 and ignore_eos."
    )
    workers: Count | None = Field(None, description="Load processes. Default: as many as are needed.")
    limits: Limits = Field(default_factory=lambda: Limits.model_validate({}))

    @model_validator(mode="after")
    def _one_arrival(self) -> WorkloadModel:
        if (self.concurrency is None) == (self.arrival is None):
            both = "not both 'concurrency' and 'arrival'" if self.arrival else "'concurrency' or 'arrival'"
            raise PydanticCustomError("expected", "a workload needs {what}", {"what": both})
        if self.arrival is not None and self.arrival.kind == "trace" and self.requests is None:
            raise PydanticCustomError("expected", "a trace needs 'requests', how many of it are measured")
        if self.vocab is not None and self.vocab[0] >= self.vocab[1]:
            raise PydanticCustomError("expected", "vocab is [low, high], with low below high")
        return self


class ServerModel(_Model):
    """One server config as written; see ``server.py`` for what it becomes."""

    description: str | None = None
    extends: str | None = Field(None, description="Another server config, whose settings this one changes.")
    model: str | None = Field(None, min_length=1, description="Model path or Hugging Face id.")
    python: str | None = Field(None, min_length=1, description="Python on the node that has sglang.")
    command: Annotated[list[str], Field(min_length=1)] | None = Field(
        None,
        description="What is launched instead of [python, -m, sglang.launch_server]; '{python}' is replaced.",
    )
    cwd: str | None = Field(None, description="Working directory on the node.")
    host: str | None = Field(None, min_length=1, description="Address to listen on. Default: 127.0.0.1.")
    port: Annotated[int, Field(ge=0, le=65535)] | None = Field(
        None, description="Port to listen on. Default: a free one."
    )
    args: dict[str, Scalar | list[Scalar] | dict[str, Any] | None] = Field(
        default_factory=dict, description="sglang's arguments, without '--'. null removes an inherited one."
    )
    env: dict[str, str | int | float | None] = Field(
        default_factory=dict, description="Environment variables. null removes an inherited one."
    )
    secret_env: list[str] = Field(
        default_factory=list, description="Environment variables whose values come from this environment."
    )
    secret_args: dict[str, str | None] = Field(
        default_factory=dict, description="Argument: environment variable that holds its value here."
    )
    boot_limits_s: dict[str, Seconds] = Field(
        default_factory=dict, description="Seconds without progress that a boot phase may take."
    )
    boot_deadline_s: Seconds | None = Field(None, description="Seconds that a whole boot may take.")
    probe_timeout_s: Seconds | None = Field(None, description="Limit for one readiness probe.")
    stop_s: Annotated[float, Field(ge=0)] | None = Field(None, description="Seconds from SIGTERM to SIGKILL.")


class SuiteModel(_Model):
    """A whole suite file."""

    default_node: str | None = Field(None, description="The node where none is named by option or mark.")
    default_workload: str | None = Field(None, description="The workload where a mark names none.")
    boots: Boots = Field(
        default_factory=lambda: [1, 1],
        description="Boots of a server config in one session: a number, or [first, most], which adds boots while a "
        "claim is inconclusive.",
    )
    trials: Count = Field(4, description="Trials of each level in a boot.")
    precision: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None,
        description="Trials of a level end early, after three at least, once the mean of their output throughput is "
        "known to this fraction either way (90 % interval).",
    )
    lease_wait: Annotated[float, Field(ge=0)] = Field(
        600.0, description="Seconds to wait for a node that somebody else is using."
    )
    correction: Literal["holm", "bh", "none"] = Field(
        "holm", description="Of the session's regressions, for their number: Holm, Benjamini-Hochberg or none."
    )
    margins: dict[str, Annotated[float, Field(gt=0, lt=1)]] = Field(
        default_factory=dict, description="Metric: the change that matters, as a fraction (0.03 is 3 %)."
    )
    nodes: dict[Name, Node] = Field(default_factory=dict)
    servers: dict[Name, ServerModel] = Field(default_factory=dict)
    workloads: dict[Name, WorkloadModel] = Field(default_factory=dict)
