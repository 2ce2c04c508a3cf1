"""A server that somebody else started: measured at its URL, never booted, never stopped."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pytest_sglang_perf.errors import CrashedUnderLoad, NodeUnreachable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_sglang_perf.suite import ResolvedServer, UrlNode

__all__ = ["AttachedServer"]

_TIMEOUT_S = 10.0
#: Answered by sglang (any of the first three by version) and by every OpenAI-like server (the last).
_INFO = ("/server_info", "/get_server_info")
_MODELS = "/v1/models"


class AttachedServer:
    """Stands where a ``Boot`` stands on nodes where we boot. There is no log, no process and no GPU to look at.

    Args:
        node: where it is, and which API it speaks.
        server: the server config that it is taken to run with.
        environ: has the API key, by the name in ``node.api_key_env``.
    """

    boot_id = ""
    boot_time_s: float | None = None
    evidence = None
    children: tuple[str, ...] = ()

    def __init__(self, node: UrlNode, server: ResolvedServer, environ: Mapping[str, str] | None = None) -> None:
        self.node = node
        self.server = server
        self.url = node.url.rstrip("/")
        parts = urlsplit(node.url)
        self.host = parts.hostname or ""
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self.lines: list[str] = []
        self.facts: dict[str, Any] = {}
        self.server_info: dict[str, Any] = {}
        self.model = node.model
        self._environ = os.environ if environ is None else environ

    def attach(self) -> None:
        """See that a server is there, and what it says of itself.

        Raises:
            NodeUnreachable: nobody answers, or the answer is not that of such a server.
        """
        for path in _INFO:
            if isinstance(found := self._get(path), dict):
                self.server_info = found
                break
        models = self._get(_MODELS)
        if not self.server_info and not isinstance(models, dict):
            raise NodeUnreachable(
                f"{self.url} answers neither {' nor '.join(_INFO)} nor {_MODELS}: "
                "is that an sglang or OpenAI-compatible server?"
            )
        if self.model is None and self.node.api != "generate" and isinstance(models, dict):
            served = [str(model.get("id")) for model in models.get("data") or [] if isinstance(model, dict)]
            if len(served) != 1:
                raise NodeUnreachable(
                    f"{self.url} serves {len(served)} models ({', '.join(served) or 'none'}): "
                    "name one by the node's key `model`"
                )
            self.model = served[0]

    def _get(self, path: str) -> Any:
        import requests

        key = self._environ.get(self.node.api_key_env or "")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            answer = requests.get(self.url + path, headers=headers, timeout=_TIMEOUT_S)
        except requests.RequestException as error:
            raise NodeUnreachable(
                f"no server answers at {self.url} ({type(error).__name__}). It is started by somebody else: "
                "start it there, or correct the node's `url`"
            ) from None
        if answer.status_code in {401, 403}:
            raise NodeUnreachable(
                f"{self.url} refuses us (HTTP {answer.status_code}): name the variable with its key by `api_key_env`"
            )
        try:
            return answer.json() if answer.ok else None
        except ValueError:
            return None

    def order(self) -> dict[str, Any]:
        """What the load engine's order says of this server."""
        found = {"url": self.url, "api": self.node.api, "model": self.model, "api_key_env": self.node.api_key_env}
        return {key: value for key, value in found.items() if value is not None}

    def request_server_info(self, *, timeout: float = _TIMEOUT_S) -> dict[str, Any]:
        """What the server says of itself; empty where it has no such page. ``timeout`` is that of the node."""
        del timeout
        return dict(self.server_info)

    def dead(self) -> str | None:
        """Never known to be: only requests tell."""
        return None

    def crashed_under_load(self, reason: str, *, level: float, requests: int) -> CrashedUnderLoad:
        """The error for a trial in which the server stopped answering."""
        return CrashedUnderLoad(
            f'the server at {self.url} (config "{self.server.name}") failed at concurrency {level:g}, after {requests} '
            f"finished requests: {reason}. Its log and processes are on a machine that this node does not show",
            crash_class="unreachable",
            server=self.server.name,
            level=level,
            requests=requests,
        )

    def stop(self, *, wait_s: float = 0.0) -> None:
        """Leave it as it is; it is not ours."""
