"""What tests receive. Kept apart from the plugin so that its imports happen only when a perf test runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_sglang_perf.server.attached import AttachedServer

if TYPE_CHECKING:
    from pytest_sglang_perf.declaration import Declaration
    from pytest_sglang_perf.server.boot import Boot
    from pytest_sglang_perf.session import PerfSession

__all__ = ["ServerHandle"]


class ServerHandle:
    """A live server, as the fixture ``sglang_server`` gives it.

    Attributes:
        name: the server config's name.
        url: base URL on 127.0.0.1, forwarded where the node is remote. For a test's own requests; the load of a
            measurement never takes this way.
    """

    def __init__(self, session: PerfSession, declaration: Declaration, boot: Boot | AttachedServer) -> None:
        self._session = session
        self._declaration = declaration
        self._boot = boot
        self.name = boot.server.name

    @property
    def url(self) -> str:
        if isinstance(self._boot, AttachedServer):
            return self._boot.url
        return f"http://127.0.0.1:{self._session.forward(self._boot.port)}"

    @property
    def log(self) -> str:
        """The server's log so far, standard output and error merged."""
        return "\n".join(self._boot.lines)

    @property
    def facts(self) -> dict[str, Any]:
        """What the boot told: capacity, chosen backends, features disabled silently, seconds per phase."""
        return self._boot.facts

    @property
    def children(self) -> tuple[str, ...]:
        """Titles of the processes that are watched, such as ``sglang::scheduler_TP1``, as they were at readiness."""
        return self._boot.children

    @property
    def boot_time(self) -> float:
        """Seconds from spawn to readiness."""
        return float(self._boot.boot_time_s or 0.0)

    def server_info(self, *, timeout: float = 10.0) -> dict[str, Any]:
        """The server's own /server_info, secrets redacted."""
        return self._boot.request_server_info(timeout=timeout)

    def __repr__(self) -> str:
        return f"<sglang server {self.name!r} at {self._boot.url}>"


def serve(session: PerfSession, declaration: Declaration) -> ServerHandle:
    """Return a handle to the declared server, booting it where needed."""
    boot = session.bench.ensure(session.suite.server(declaration.server), test=declaration.nodeid)
    return ServerHandle(session, declaration, boot)
