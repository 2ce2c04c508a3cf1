"""Merging a server config with its parents, and every rule about its keys that a schema cannot say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_sglang_perf.server.phases import LIMITS_S
from pytest_sglang_perf.suite._problems import KeyPath, did_you_mean, is_secret
from pytest_sglang_perf.suite.flags import ArgumentValue, canonical
from pytest_sglang_perf.suite.server import ResolvedServer

if TYPE_CHECKING:
    from pytest_sglang_perf.suite._problems import Problems
    from pytest_sglang_perf.suite._yaml import Document
    from pytest_sglang_perf.suite.models import ServerModel

__all__ = ["resolve_servers"]

_OWN_KEYS = {"model-path": "model", "host": "host", "port": "port"}
_SCALARS = ("model", "python", "cwd", "host", "port", "boot_deadline_s", "probe_timeout_s", "stop_s")
_SECRET_FLAGS = ("api-key", "admin-api-key", "ssl-keyfile-password")


def resolve_servers(
    servers: dict[str, ServerModel], document: Document, problems: Problems
) -> dict[str, ResolvedServer]:
    """Resolve every server config of a suite; problems are added, not raised."""
    resolver = _Resolver(servers, document, problems)
    parents = {server.extends for server in servers.values()}
    resolved = {}
    for name in servers:
        resolver.check_keys(name)
        chain = resolver.chain(name)
        if chain is not None:
            server = resolver.merge(name, chain)
            if server.model:
                resolved[name] = server
            elif name not in parents:  # one that only serves as a parent needs none
                problems.add("the key 'model' is missing, here and in what it extends", **resolver.at(name))
    return resolved


class _Resolver:
    def __init__(self, servers: dict[str, ServerModel], document: Document, problems: Problems) -> None:
        self.servers = servers
        self.document = document
        self.problems = problems

    def at(self, *path: str | int) -> dict[str, Any]:
        """``place`` and ``path`` of a key below ``servers``, as ``Problems.add`` wants them."""
        full: KeyPath = ("servers", *path)
        return {"place": self.document.place(full), "path": full}

    def chain(self, name: str) -> tuple[str, ...] | None:
        """From the root to ``name``; None, with a problem told, where there is none."""
        chain = [name]
        while (parent := self.servers[chain[-1]].extends) is not None:
            if parent not in self.servers:
                if len(chain) == 1:  # else it is told at the parent itself
                    known = did_you_mean(parent, self.servers) or f"; servers are {', '.join(self.servers)}"
                    self.problems.add(
                        f"extends the unknown server config {parent!r}{known}", **self.at(name, "extends")
                    )
                return None
            if parent in chain:
                if parent == name:  # told once for each member, not for those that hang below
                    circle = " -> ".join([*chain, parent])
                    self.problems.add(f"extends itself: {circle}", **self.at(name, "extends"))
                return None
            chain.append(parent)
        return tuple(reversed(chain))

    def check_keys(self, name: str) -> None:
        """What is wrong in one server config by itself."""
        server = self.servers[name]
        self._check_args(name, server)
        for key, value in server.env.items():
            text = isinstance(value, str) and not value.isdigit()
            if is_secret(key) and text:
                self.problems.add(
                    f"a secret does not belong into a file (value not shown). Write secret_env: [{key}]: "
                    f"the value is then taken from the environment of pytest",
                    **self.at(name, "env", key),
                )
            if not key or "=" in key or "\0" in key:
                self.problems.add(f"{key!r} cannot be the name of a variable", **self.at(name, "env", key))
        for phase in server.boot_limits_s:
            if phase not in LIMITS_S:
                guess = did_you_mean(phase, LIMITS_S) or f"; phases are {', '.join(LIMITS_S)}"
                self.problems.add(f"there is no boot phase {phase!r}{guess}", **self.at(name, "boot_limits_s", phase))
        both = sorted(set(server.env) & set(server.secret_env))
        for key in both:
            self.problems.add(f"{key} is in env and in secret_env; keep one", **self.at(name, "env", key))

    def _check_args(self, name: str, server: ServerModel) -> None:
        first: dict[str, tuple[str, str]] = {}
        for part, written in (("args", server.args), ("secret_args", server.secret_args)):
            for key in written:
                self._check_arg(name, part, key, server)
                one = canonical(key)
                if one in first:
                    other_part, other = first[one]
                    place = self.document.place(("servers", name, other_part, other))
                    line = f" in line {place.line}" if place else ""
                    self.problems.add(
                        f"{key!r} and {other!r}{line} are the same argument (--{one}); keep one",
                        **self.at(name, part, key),
                    )
                first.setdefault(one, (part, key))
        if server.secret_args and "config" in map(canonical, server.args):
            self.problems.add(
                "cannot be combined with secret_args, which need sglang's --config for themselves",
                **self.at(name, "args", "config"),
            )

    def _check_arg(self, name: str, part: str, key: str, server: ServerModel) -> None:
        one = canonical(key)
        if key.startswith("-"):
            self.problems.add(
                f"arguments are written without dashes in front: {key.lstrip('-')!r}",
                **self.at(name, part, key),
            )
        elif not key or any(c.isspace() or c == "=" for c in key):
            self.problems.add(f"{key!r} cannot be the name of an argument", **self.at(name, part, key))
        elif one in _OWN_KEYS:
            self.problems.add(
                f"is not an argument here; write {_OWN_KEYS[one]!r} one step further out, beside 'args'",
                **self.at(name, part, key),
            )
        elif part == "args" and one in _SECRET_FLAGS and server.args[key] is not None:
            self.problems.add(
                "a secret (value not shown) belongs neither into a file nor into a command line, which all "
                f"users of a node can read. Write secret_args: {{{one}: VARIABLE}}, set VARIABLE for pytest",
                **self.at(name, part, key),
            )

    def merge(self, name: str, chain: tuple[str, ...]) -> ResolvedServer:
        """One config from all of its chain, later ones winning."""
        args: dict[str, ArgumentValue] = {}
        env: dict[str, str | None] = {}
        secret_args: dict[str, str | None] = {}
        secret_env: dict[str, None] = {}
        limits: dict[str, float] = {}
        scalars: dict[str, Any] = {}
        command: list[str] | None = None
        for link in chain:
            server = self.servers[link]
            # A secret in a child takes the place of a plain one in a parent, and the other way round.
            for key, value in server.args.items():
                secret_args.pop(canonical(key), None)
                args[canonical(key)] = self._as_written(("servers", link, "args", key), value)
            for key, variable in server.secret_args.items():
                args.pop(canonical(key), None)
                secret_args[canonical(key)] = variable
            for key, item in server.env.items():
                secret_env.pop(key, None)
                env[key] = (
                    None if item is None else str(self._as_written(("servers", link, "env", key), item, exact=True))
                )
            for key in server.secret_env:
                env.pop(key, None)
                secret_env[key] = None
            limits |= server.boot_limits_s
            command = server.command or command
            scalars |= {key: value for key in _SCALARS if (value := getattr(server, key)) is not None}
        return ResolvedServer(
            name=name,
            chain=chain,
            model=scalars.pop("model", ""),
            command=None if command is None else tuple(command),
            args={key: value for key, value in sorted(args.items()) if value is not None},
            env={key: item for key, item in sorted(env.items()) if item is not None},
            secret_env=tuple(secret_env),
            secret_args={key: item for key, item in sorted(secret_args.items()) if item is not None},
            boot_limits_s=limits,
            description=self.servers[name].description,
            **scalars,
        )

    def _as_written(self, path: KeyPath, value: Any, *, exact: bool = False) -> Any:
        """A number as the file has it, where a float would change it: ``12.10`` is a version, not 12.1."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return value
        written = self.document.written.get(path)
        if written is None or (not exact and str(value) == written):
            return value
        return written
