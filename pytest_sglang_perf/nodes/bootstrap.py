"""From a login shell to our agent: one constant command, then bytes.

A login shell may be sh, bash, zsh, fish, csh or something stranger, and whatever it parses can be misread by it.
So it only ever parses `BOOTSTRAP`, a constant without newline, backslash, ``!`` or quote tricks; everything that
depends on the user (the interpreter's path, the agent, all orders) arrives on standard input afterwards:

1. one line: the interpreter's path (``~/`` is understood); ``/bin/sh`` executes it with a constant program;
2. one JSON line: ``{"sha256": …, "size": …, "args": […]}``; the answer is
   ``{"bootstrap": 1, "have": true|false, "python": "3.11.7"}``;
3. if the node has no such agent yet: its bytes, verified, kept under ``~/.cache/sglang-perf/agents``.

Then the same process becomes the agent. A failure on the way is one line
``{"bootstrap_error": kind, "message": …}``, or an exit status that `_ADVICE` knows.
"""

from __future__ import annotations

import base64
import json
import time
import zlib
from typing import TYPE_CHECKING, Any

from pytest_sglang_perf.errors import ConnectionLost, NodeSetupError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_sglang_perf.nodes.transport import Channel, Transport
    from pytest_sglang_perf.nodes.zipapp import Archive

__all__ = ["BOOTSTRAP", "start"]

# Runs under whatever the node calls python, Python 2.7 included: it has to get as far as its version check.
_STAGE = r"""
import errno, hashlib, json, os, sys
def say(**fields):
    os.write(1, (chr(10) + json.dumps(fields) + chr(10)).encode())
def fail(kind, message):
    say(bootstrap_error=kind, message=message)
    sys.exit(70)
version = '.'.join(str(part) for part in sys.version_info[:3])
if sys.version_info < (3, 9):
    fail('python_too_old', '%s is Python %s' % (sys.executable, version))
if not sys.platform.startswith('linux'):
    fail('not_linux', 'the node runs %s' % sys.platform)
line = b''
while not line.endswith(b'\n'):
    byte = os.read(0, 1)
    if not byte or len(line) > 65536:
        fail('protocol', 'no header line arrived')
    line += byte
header = json.loads(line.decode())
want, size = header['sha256'], header['size']
cache = os.environ.get('XDG_CACHE_HOME') or os.path.join(os.path.expanduser('~'), '.cache')
folder = os.path.join(cache, 'sglang-perf', 'agents')
path = os.path.join(folder, 'agent-%s.pyz' % want)
def intact():
    try:
        with open(path, 'rb') as file:
            return hashlib.sha256(file.read()).hexdigest() == want
    except (IOError, OSError):
        return False
have = intact()
say(bootstrap=1, have=have, python=version)
if not have:
    parts, left = [], size
    while left:
        part = os.read(0, min(left, 65536))
        if not part:
            fail('protocol', 'the agent arrived incomplete, %d of %d bytes missing' % (left, size))
        parts.append(part)
        left -= len(part)
    data = b''.join(parts)
    if hashlib.sha256(data).hexdigest() != want:
        fail('hash_mismatch', 'the agent that arrived is not the one that was sent')
    temporary = '%s.%d' % (path, os.getpid())
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        os.chmod(os.path.dirname(folder), 0o700)
        os.chmod(folder, 0o700)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, 'wb') as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
        os.rename(temporary, path)
    except (IOError, OSError) as error:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        kinds = {errno.ENOSPC: 'no_space', errno.EDQUOT: 'no_space'}
        fail(kinds.get(error.errno, 'unwritable'), '%s: %s' % (folder, error))
os.execv(sys.executable, [sys.executable, '-I', path, 'serve'] + header.get('args', []))
"""


def _command() -> str:
    # $1 is the stage: compressed and in base64, which no shell can misread, and short enough for any of them.
    stage = base64.b64encode(zlib.compress(_STAGE.encode(), 9)).decode()
    loader = "import sys,zlib,base64;exec(zlib.decompress(base64.b64decode(sys.argv[1])))"
    script = (
        "IFS= read -r p || exit 64; "
        'case "$p" in "~/"*) p="$HOME/${p#??}";; esac; '
        'command -v "$p" >/dev/null 2>&1 || { echo sglang-perf: no such interpreter >&2; exit 127; }; '
        f'exec "$p" -c "{loader}" "$1"'
    )
    return f"exec /bin/sh -c '{script}' sglang-perf {stage}"


BOOTSTRAP = _command()

_ADVICE = {
    "no_python": "no Python interpreter {python!r} there; name one with `python:` of the node",
    "python_too_old": "the agent needs Python 3.9 or newer; name one with `python:` of the node",
    "not_linux": "the agent supervises processes through /proc, so the node must run Linux",
    "no_space": "free some space there, or point XDG_CACHE_HOME of that user to a disk that has some",
    "unwritable": "make that folder writable, or point XDG_CACHE_HOME of that user elsewhere",
    "hash_mismatch": "something on the way changes bytes; a shell start-up file that reads its input would",
    "protocol": "a shell start-up file that reads its input, or a forced command, would do this",
    "not_started": "run `ssh NODE true` by hand; a start-up file that fails or exits would do this",
}
# Anything printed before our first line comes from shell start-up files; more than this is not a greeting.
_MAX_GREETING = 256 * 1024


def start(
    transport: Transport,
    archive: Archive,
    *,
    python: str = "python3",
    args: Sequence[str] = (),
    timeout: float = 60.0,
) -> tuple[Channel, bytes]:
    """Run the agent on a node.

    Args:
        transport: the way to the node.
        archive: the agent.
        python: the interpreter there, a path or a name on its ``PATH``.
        args: further arguments of ``serve``.
        timeout: seconds for all of it.

    Returns:
        The channel to the agent, and what has already been read from it.

    Raises:
        NodeSetupError: the agent cannot run there, with what to do about it.
        NodeUnreachable, HostKeyError, ConnectionLost: from the transport.
    """
    if "\n" in python or not python:
        raise NodeSetupError(f"{python!r} is not the path of a Python interpreter")
    deadline = time.monotonic() + timeout
    channel = transport.open(BOOTSTRAP)
    try:
        header = {"sha256": archive.sha256, "size": len(archive.data), "args": list(args)}
        first = f"{python}\n{json.dumps(header)}\n".encode()
        answer, rest = _exchange(channel, first, deadline, where=transport.describe(), python=python)
        if not answer["have"]:
            channel.send(archive.data, timeout=max(0.1, deadline - time.monotonic()))
    except BaseException:
        channel.close()
        raise
    return channel, rest


def _exchange(
    channel: Channel, data: bytes, deadline: float, *, where: str, python: str
) -> tuple[dict[str, Any], bytes]:
    seen = b""
    try:
        channel.send(data, timeout=max(0.1, deadline - time.monotonic()))
        while len(seen) < _MAX_GREETING:
            lines = seen.split(b"\n")
            for number, line in enumerate(lines[:-1]):
                message = as_message(line)
                if "bootstrap" in message:
                    return message, b"\n".join(lines[number + 1 :])
                if "bootstrap_error" in message:
                    raise setup_error(message, where=where, python=python)
            part = channel.receive(timeout=max(0.1, deadline - time.monotonic()))
            if not part:
                break
            seen += part
    except TimeoutError:
        raise NodeSetupError(
            f"{where}: the agent did not start in time{_heard(seen, channel)}; {_ADVICE['not_started']}"
        ) from None
    except ConnectionLost:
        # A command that fails at once breaks our pipe before its reason has been read.
        if channel.exit_status(timeout=1.0) is None:
            raise
    status = channel.exit_status(timeout=5.0)
    kind = "no_python" if status in {126, 127} else "not_started"
    advice = _ADVICE[kind].format(python=python)
    raise NodeSetupError(f"{where}: the agent did not start (exit status {status}){_heard(seen, channel)}; {advice}")


def as_message(line: bytes) -> dict[str, Any]:
    """The JSON object in ``line``, or an empty one: start-up files may print anything before us."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}


def setup_error(message: dict[str, Any], *, where: str, python: str) -> NodeSetupError:
    """The error that a ``bootstrap_error`` line stands for, with advice."""
    kind = str(message["bootstrap_error"])
    advice = _ADVICE.get(kind, _ADVICE["not_started"]).format(python=python)
    return NodeSetupError(f"{where}: the agent cannot run there: {message.get('message', kind)}; {advice}")


def _heard(seen: bytes, channel: Channel) -> str:
    words = (channel.stderr() + seen[-300:].decode(errors="replace")).strip()
    return f", it said: {words[-400:]}" if words else ""
