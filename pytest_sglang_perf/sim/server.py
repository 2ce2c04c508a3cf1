"""A program that behaves like ``python -m sglang.launch_server`` on a simulated machine.

SGLANG_SIM_PROFILE=tiny python -m pytest_sglang_perf.sim.server --model-path m --port 31000
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING

from .boot import PHASES
from .clock import SimClock
from .faults import parse_faults
from .flags import ServerArgs, parse_flags
from .gpus import process_started
from .profiles import load_profile
from .serving import Server
from .settings import read_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .profiles import Profile

__all__ = ["main"]

_FOR_EVER_S = 3600.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server; returns its exit status, unless it kills itself as sglang does."""
    words = sys.argv[1:] if argv is None else list(argv)
    settings = read_settings()
    profile = load_profile(settings.profile)
    faults = parse_faults(settings.fail, PHASES)
    clock = SimClock(settings.time_scale or profile.time_scale, _spawned())
    sys.stderr.write(
        "/usr/lib/python3/dist-packages/sglang/launch_server.py:51: UserWarning: "
        "'python -m sglang.launch_server' is still supported, but 'sglang serve' is the recommended entrypoint.\n"
        "  Example: sglang serve --model-path <model> [options]\n"
        "  warnings.warn(\n"
    )
    sys.stderr.flush()
    if faults.hang == "imports":
        time.sleep(_FOR_EVER_S)
    if faults.crash == "imports":
        raise ImportError("libnvrtc.so.13: cannot open shared object file (a fault ordered by SGLANG_SIM_FAIL)")
    # sglang's imports take seconds, before it even looks at its flags.
    time.sleep(clock.real_until(profile.boot.imports_s))
    args = _complete(parse_flags(words, settings.version or profile.version), profile)
    loop = _new_loop()
    with contextlib.closing(loop):
        try:
            return loop.run_until_complete(Server(loop, settings, profile, faults, args, clock).run())
        except KeyboardInterrupt:
            sys.stderr.write("Traceback (most recent call last):\nKeyboardInterrupt\n")
            return 1


def _spawned() -> float:
    """When this process was started, by ``time.monotonic``: our own imports are part of sglang's."""
    ticks = process_started(os.getpid())
    if ticks is None:
        return time.monotonic()
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - max(age, 0.0)


def _complete(args: ServerArgs, profile: Profile) -> ServerArgs:
    """Fill in what sglang decides itself when it was not told."""
    fields = args.fields
    if fields.get("chunked_prefill_size") is None:
        fields["chunked_prefill_size"] = profile.chunked_prefill_size
    if not any(word.startswith("--max-prefill-tokens") for word in args.argv):
        fields["max_prefill_tokens"] = profile.max_prefill_tokens
    if fields.get("random_seed") is None:
        fields["random_seed"] = int.from_bytes(os.urandom(4), "big") >> 2
    return args


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


if __name__ == "__main__":
    sys.exit(main())
