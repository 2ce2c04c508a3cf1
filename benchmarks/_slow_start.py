"""A server that knows the moment from which it can be found ready, and writes it down.

    python -m benchmarks._slow_start PORT READY_AFTER_S PROBE_S NOTE [ready|health]

It listens after half of READY_AFTER_S and answers 503, and 200 from READY_AFTER_S on; that moment (ns of
CLOCK_MONOTONIC) is in NOTE. ``health``: there is no /ready, and a 200 of /health takes PROBE_S, as in a server that
generates a token for it. A worker titled ``sglang::worker`` runs below it.
"""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    port, ready_after_s, probe_s, note, dialect = sys.argv[1:]
    began = time.monotonic_ns()
    ready_ns = began + int(float(ready_after_s) * 1e9)
    worker = subprocess.Popen(["sglang::worker", "-c", "import time; time.sleep(600)"], executable=sys.executable)
    time.sleep(float(ready_after_s) / 2)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path == "/ready" and dialect == "ready":
                self.answer(200 if time.monotonic_ns() >= ready_ns else 503)
            elif self.path == "/health":
                ready = time.monotonic_ns() >= ready_ns
                if ready:
                    time.sleep(float(probe_s))
                self.answer(200 if ready else 503)
            elif self.path == "/server_info":
                self.answer(200, {"model_path": "none", "port": int(port)})
            else:
                self.answer(404)

        def answer(self, status: int, body: dict[str, object] | None = None) -> None:
            data = json.dumps(body or {}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), Handler)
    Path(note).write_text(json.dumps({"ready_ns": ready_ns, "worker": worker.pid}), encoding="utf-8")
    server.serve_forever()


if __name__ == "__main__":
    main()
