"""A small server with sglang's habits, as a real process: argv is JSON with what it shall do.

port            where to listen
delay_s         before it binds
starting_s      answers 503 for so long after it has bound
ready           whether /ready exists (otherwise 404, as in older versions)
info            what /server_info reports
children        titles of workers; each sleeps under that title
escaped         whether to leave a grandchild that has double-forked into its own session
log             lines to print at start
fail            exit code, before it binds
term            "exit" (default), "ignore" or "slow"
"""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

SLEEPER = "import time\ntime.sleep(600)"


def worker(title):
    """A child under a title of its own, as setproctitle would give it."""
    return subprocess.Popen([title, "-c", SLEEPER], executable=sys.executable)


def escape(path):
    """A grandchild in a session of its own, whose parent is gone, without the environment it came with."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            with Path(path).open("w") as file:
                file.write(str(os.getpid()))
            os.execve(sys.executable, ["escaped", "-c", SLEEPER], {})
        os._exit(0)
    os.wait()


def main():
    """Run."""
    order = json.loads(sys.argv[1])
    order.setdefault("port", int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    if order.get("term") == "ignore":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    for line in order.get("log", []):
        sys.stdout.write(line)
        sys.stdout.flush()
    workers = [worker(title) for title in order.get("children", [])]
    if order.get("escaped"):
        escape(order["escaped"])
    time.sleep(order.get("delay_s", 0))
    if "fail" in order:
        sys.exit(order["fail"])
    bound = time.monotonic()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            starting = time.monotonic() - bound < order.get("starting_s", 0)
            if self.path == "/ready" and not order.get("ready", True):
                self.answer(404, {})
            elif self.path in {"/ready", "/health"}:
                self.answer(503 if starting else 200, {})
            elif self.path == "/server_info" and "info" in order:
                self.answer(200, {**order["info"], "port": order["port"]})
            elif self.path == "/pids":
                self.answer(200, {"workers": [one.pid for one in workers]})
            else:
                self.answer(404, {})

        def answer(self, status, body):
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", order["port"]), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    signal.pause()
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
