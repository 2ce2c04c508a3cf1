"""The shape of a run file, checked before anything is made of one: people edit, cut and merge them.

Only what reports and comparisons read is checked; further keys are let pass. `docs/reference/run-file.md` has all.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

__all__ = ["problem"]

Number = Annotated[float, Field(ge=-1e15, le=1e15)]  # beyond, nothing is a measurement (and NaN is no number)
Count = Annotated[int, Field(ge=0)]
When = Annotated[float, Field(ge=0, le=4e9)]  # s since 1970; a date has an end


class _Shape(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="ignore")


class Side(_Shape):
    """One side of a claim."""

    label: str
    value: Number
    low: Number
    high: Number
    boots: Count
    trials: Count


class Verdict(_Shape):
    """What was found about a claim."""

    effect: Number
    interval: Annotated[list[Number], Field(min_length=2, max_length=2)]
    confidence: Number
    method: str = ""
    more_boots: int | None = None
    warnings: list[str] = []


class Claim(_Shape):
    """A claim of a test."""

    text: str
    metric: str
    unit: str
    status: str
    candidate: Side
    reference: Side | None
    level: Number | None = None
    verdict: Verdict | None = None
    blame: str = ""


class Error(_Shape):
    """How a test ended that did not come to its claims."""

    kind: str
    crash_class: str = Field("", alias="class")
    phase: str = ""
    level: Number = 0


class Test(_Shape):
    """A test's end."""

    __test__: ClassVar[bool] = False  # not a test class to pytest

    nodeid: str
    server: str
    outcome: str
    failed: bool
    text: str
    claims: list[Claim]
    workload: str = ""
    error: Error | None = None
    control: str | None = None
    expect: str | None = None
    reason: str | None = None


class Trial(_Shape):
    """What is shown of a single trial; its figures are in the columns."""

    notes: list[str] = []
    absent: dict[str, str] = {}


class Facts(_Shape):
    """What sglang decided by itself, as its log says it."""

    backends: list[str] = []
    disabled: list[str] = []
    changed: list[str] = []


class Measured(_Shape):
    """The trials of one boot at one level."""

    server: str
    config: str
    workload: str
    workload_fingerprint: str
    level: Annotated[float, Field(gt=0, le=1e15)]
    boot: Count
    started: When
    boot_time: Number | None
    version: str
    session: str
    columns: dict[str, list[Number]]
    facts: Facts = Facts()
    trials: list[Trial] = []


class Session(_Shape):
    """Where and how; a session that reached no node lacks much of it."""

    run: str = ""
    node: str = ""
    node_class: str | None = None
    node_details: dict[str, Any] = {}
    simulated: bool = False
    profile: str = ""
    time_scale: Number = 0
    suite: str = ""
    margins: dict[str, Number] = {}
    started: When = 0
    plan: str = ""
    spent: dict[str, Number] = {}
    plugin_version: str = ""


class Run(_Shape):
    """The whole file."""

    session: Session
    tests: list[Test]
    measured: list[Measured]
    baselines: list[str] = []
    problems: list[str] = []


def problem(data: object) -> str | None:
    """The first thing that is not as it should be, and where; None if all is well."""
    try:
        Run.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        return f"{where}: {first['msg'][:1].lower()}{first['msg'][1:]}"
    return None
