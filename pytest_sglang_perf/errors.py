"""Every error a user can meet, in one tree.

    SglangPerfError
    ├── SuiteError             the suite file, a mark or an option is wrong: what, where, what was expected
    ├── NodeError              the node, not the server, is the trouble
    │   ├── NodeUnreachable        no connection: name, address, port, authentication
    │   ├── HostKeyError           the host key is unknown, changed or revoked
    │   ├── NodeSetupError         connected, but the agent cannot run there (no Python, no space)
    │   ├── ConnectionLost         the agent or the way to it went away during work
    │   ├── LeaseUnavailable       somebody else holds the node (or these GPUs) past our deadline
    │   └── AgentError             the agent refused or failed an order, in its own words
    ├── ServerCrashed          the server under test ended, froze or never came up: phase, class, evidence
    │   └── CrashedUnderLoad       the same while a trial ran: which level, after how many requests
    ├── MeasureError           a server is up, but there is no figure to judge
    │   ├── NotDeclared            a level, server or workload that the test did not declare
    │   ├── TrialInvalid           the client, the power reading or the output was not trustworthy
    │   ├── MetricAbsent           this metric cannot be had here, and why
    │   └── SessionVoid            the canary says that the node itself moved: nothing of the session counts
    ├── BaselineError          the stored side of a comparison
    │   ├── NoBaseline             nothing stored yet; names the command that records it
    │   ├── NotComparable          stored for another node class
    │   └── BaselineUnwritable     the folder or file cannot be written
    ├── RunFileError           a run file that cannot be read, or is none
    └── VerdictError           a comparison that has no meaning (units, factors, empty data)

Messages say what happened and what to do next. ``str(error)`` is complete: it is printed without a traceback.
"""

from __future__ import annotations

__all__ = [
    "AgentError",
    "BaselineError",
    "BaselineUnwritable",
    "ConnectionLost",
    "CrashedUnderLoad",
    "HostKeyError",
    "LeaseUnavailable",
    "MeasureError",
    "MetricAbsent",
    "NoBaseline",
    "NodeError",
    "NodeSetupError",
    "NodeUnreachable",
    "NotComparable",
    "NotDeclared",
    "RunFileError",
    "ServerCrashed",
    "SessionVoid",
    "SglangPerfError",
    "SuiteError",
    "TrialInvalid",
    "VerdictError",
]


class SglangPerfError(Exception):
    """Base of all errors of this package."""


class SuiteError(SglangPerfError):
    """The suite file, a mark or an option is wrong."""


class NodeError(SglangPerfError):
    """The node, not the server, is the trouble."""


class NodeUnreachable(NodeError):
    """No connection to the node could be made."""


class HostKeyError(NodeError):
    """The node's host key is unknown, has changed or is revoked."""


class NodeSetupError(NodeError):
    """The node answered, but the agent cannot run there."""


class ConnectionLost(NodeError):
    """The agent, or the way to it, went away during work."""


class LeaseUnavailable(NodeError):
    """Somebody else holds the node past our deadline."""


class AgentError(NodeError):
    """The agent refused or failed an order.

    ``kind`` is the machine-readable word of the wire protocol, ``details`` its further fields.
    """

    def __init__(self, message: str, *, kind: str = "failed", details: dict[str, object] | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.details = details or {}


class ServerCrashed(SglangPerfError):
    """The server under test ended, froze or never came up.

    ``crash_class`` is a class of the classifier, ``phase`` the boot phase (or ``running``).
    """

    def __init__(self, message: str, *, crash_class: str = "unknown", phase: str = "", server: str = "") -> None:
        super().__init__(message)
        self.crash_class = crash_class
        self.phase = phase
        self.server = server


class CrashedUnderLoad(ServerCrashed):
    """The server ended or froze while a trial ran."""

    def __init__(
        self,
        message: str,
        *,
        crash_class: str = "unknown",
        phase: str = "running",
        server: str = "",
        level: float = 0,
        requests: int = 0,
    ) -> None:
        super().__init__(message, crash_class=crash_class, phase=phase, server=server)
        self.level = level
        self.requests = requests


class MeasureError(SglangPerfError):
    """A server is up, but there is no figure to judge."""


class NotDeclared(MeasureError):
    """A level, server or workload that the test did not declare."""


class TrialInvalid(MeasureError):
    """The client, the power reading or the output was not trustworthy."""


class SessionVoid(MeasureError):
    """The node itself moved while the session ran, or its canary could not be measured."""


class MetricAbsent(MeasureError):
    """This metric cannot be had here; the message says why."""


class BaselineError(SglangPerfError):
    """The stored side of a comparison is the trouble."""


class NoBaseline(BaselineError):
    """Nothing is stored yet; the message names the command that records it."""


class NotComparable(BaselineError):
    """What is stored belongs to another node class."""


class BaselineUnwritable(BaselineError):
    """The baselines folder or a file in it cannot be written."""


class RunFileError(SglangPerfError):
    """A run file that cannot be read, or is none."""


class VerdictError(SglangPerfError):
    """A comparison that has no meaning."""
