"""A session that races for a lease: at each line on stdin it takes it, looks around, and gives it back.

``racer.py FOLDER WITNESS WAIT_S HOLD_S``; a line on stdin is the GPUs to want ("null" for all), the answer a JSON
line. While it holds a GPU it keeps a file for it in WITNESS, made with O_EXCL: two at once cannot go unseen.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

from pytest_sglang_perf.agent.lease import Lease, LeaseUnavailable


async def main() -> None:
    folder, witness, wait_s, hold_s = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
    lease = Lease({"user": "racer", "host": "here", "pid": os.getpid()}, "0" * 32, folder=folder)
    for line in sys.stdin:
        gpus = json.loads(line)
        seen: list[dict] = []
        began = time.monotonic()
        try:
            await lease.acquire(gpus, wait_s, "race", seen.append)
        except LeaseUnavailable as error:
            answer: dict = {"lost": str(error)}
        else:
            answer = {"waited_s": time.monotonic() - began, "seen": len(seen), "clash": None}
            marks = [Path(witness, str(index)) for index in (range(4) if gpus is None else gpus)]
            try:
                for mark in marks:
                    os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
            except FileExistsError as error:
                answer["clash"] = str(error)
            print("held", flush=True)
            await asyncio.sleep(hold_s)
            for mark in marks:
                mark.unlink()
            lease.release()
        print(json.dumps(answer), flush=True)


asyncio.run(main())
