"""What a server config becomes once its parents are merged in: something to launch and to compare."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_sglang_perf.errors import SuiteError
from pytest_sglang_perf.suite.flags import ArgumentValue, render

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["SECRET_FILE", "ResolvedServer", "fingerprint_of"]

SECRET_FILE = "{secret_file:args.yaml}"  # noqa: S105 - a placeholder
"""Item of ``argv`` that stands for a file with the secret arguments on the node (sglang wants the suffix)."""

_LAUNCH = ("-m", "sglang.launch_server")


def fingerprint_of(data: object) -> str:
    """16 hex digits over plain data, the same for every order of its keys."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class ResolvedServer:
    """One server config with everything inherited.

    Attributes:
        name: its name in the suite.
        chain: names from the root of its inheritance to itself.
        model: model path or Hugging Face id.
        python: interpreter on the node that has sglang.
        command: what is launched in place of ``[python, -m, sglang.launch_server]``, or None.
        args: arguments by canonical name, without host, port and model.
        env: environment variables to set.
        secret_env: names of variables whose values come from the controller's environment.
        secret_args: canonical argument -> name of the variable that holds its value on the controller.
        boot_limits_s: seconds without progress, by boot phase.
    """

    name: str
    chain: tuple[str, ...]
    model: str
    python: str = "python3"
    command: tuple[str, ...] | None = None
    cwd: str | None = None
    host: str = "127.0.0.1"
    port: int = 0
    args: Mapping[str, ArgumentValue] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    secret_env: tuple[str, ...] = ()
    secret_args: Mapping[str, str] = field(default_factory=dict)
    boot_limits_s: Mapping[str, float] = field(default_factory=dict)
    boot_deadline_s: float | None = None
    probe_timeout_s: float | None = None
    stop_s: float | None = None
    description: str | None = None

    @property
    def launch(self) -> tuple[str, ...]:
        """The command line before sglang's own arguments."""
        if self.command is None:
            return (self.python, *_LAUNCH)
        return tuple(item.replace("{python}", self.python) for item in self.command)

    def argv(self, host: str, port: int | str, *, launch: Sequence[str] | None = None) -> list[str]:
        """The command line that starts this server.

        Args:
            host: address to listen on, or the agent's placeholder ``"{host}"``.
            port: port to listen on, or the agent's placeholder ``"{port}"``.
            launch: replaces ``self.launch``; a simulated node starts its own program with the same arguments.
        """
        items = [*(self.launch if launch is None else launch), "--model-path", self.model]
        for name in sorted(self.args):
            items += render(name, self.args[name])
        if self.secret_args:
            items += ["--config", SECRET_FILE]
        return [*items, "--host", host, "--port", str(port)]

    def secret_files(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The files with secrets that the agent writes before the launch: placeholder in ``argv`` -> content.

        sglang reads its API keys from nowhere but its arguments, and everybody on the node can read those of
        a process. It also reads arguments from the YAML file that ``--config`` names, so that they travel in
        a file that only the server's user can read. The content is JSON, which is YAML as well.

        Raises:
            SuiteError: a variable that should hold a secret is not set.
        """
        self.check_secrets(environ)
        values = {name: environ[variable] for name, variable in self.secret_args.items()}
        return {SECRET_FILE: json.dumps(values, sort_keys=True) + "\n"} if values else {}

    def check_secrets(self, environ: Mapping[str, str]) -> None:
        """Raise ``SuiteError`` where a variable that should hold a secret is not set."""
        missing = sorted({*self.secret_env, *self.secret_args.values()} - environ.keys())
        if missing:
            raise SuiteError(
                f"the server config {self.name!r} takes secrets from the environment, "
                f"but {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set. "
                f"Set {'it' if len(missing) == 1 else 'them'} before starting pytest."
            )

    @property
    def served_model(self) -> str:
        """The model's name in OpenAI-like requests."""
        return str(self.args.get("served-model-name") or self.model)

    @property
    def expect(self) -> dict[str, Any]:
        """What ``/server_info`` of the launched server must report; the agent adds the port that it chose."""
        expected: dict[str, Any] = {"model_path": self.model}
        seed = self.args.get("random-seed")
        if isinstance(seed, int):
            expected["random_seed"] = seed
        return expected

    def _matters(self) -> dict[str, dict[str, Any]]:
        rendered = {}
        for name, value in self.args.items():
            flag, *values = render(name, value) or (None,)
            # The flag itself goes without saying, but not its negation (--no-enable-...).
            rendered[name] = values if flag in {None, f"--{name}"} else [flag, *values]
        return {
            "model": {"": self.model},
            "launch": {"": list(self.launch)},
            # What renders to nothing (false, null) is as if it were not there.
            "args": {n: v for n, v in rendered.items() if render(n, self.args[n])}
            | {name: ["secret"] for name in self.secret_args},
            "env": dict(self.env),
        }

    @property
    def fingerprint(self) -> str:
        """16 hex digits over what can change figures: model, launch, arguments, environment. No secrets."""
        return fingerprint_of(self._matters())

    def describe_difference(self, other: ResolvedServer) -> list[str]:
        """What changes from this config to ``other``, such as ``args.enable-mscclpp added``."""
        mine, theirs = self._matters(), other._matters()
        lines = []
        for part, before in mine.items():
            after = theirs[part]
            for key in sorted(before.keys() | after.keys()):
                name = f"{part}.{key}" if key else part
                old, new = (_words(side.get(key)) for side in (before, after))
                if key not in after:
                    lines.append(f"{name} removed{f' (was {old})' if old else ''}")
                elif key not in before:
                    lines.append(f"{name} added{f' ({new})' if new else ''}")
                elif before[key] != after[key]:
                    lines.append(f"{name} changed from {old or 'set'} to {new or 'set'}")
        return lines


def _words(value: str | list[str] | None) -> str:
    return value if isinstance(value, str) else " ".join(value or ())
