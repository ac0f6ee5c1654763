"""The pod's side of `kubectl stele load` and `dump`: PUT /file, POST /job, GET /job, GET /file.

It serves whoever may reach the pod: the API server, for those who may use `pods/proxy`. A pod is for one job.
"""

import json
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

CHUNK_BYTES = 1024 * 1024
BODY_BYTES_MAX = 64 * 1024
LENGTH_DIGITS_MAX = 18


class Job:
    """The one job of this pod: `last` is the last line that it told."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "data.parquet"
        self.last: dict[str, Any] = {"step": "waiting", "done": 0, "all": 0}
        self._thread: threading.Thread | None = None

    def start(self, command: str, arguments: list[str]) -> None:
        """Begin; nothing when it was begun already."""
        if self._thread is None:
            line = [sys.executable, "-m", "stele.client.job", command, str(self.file), *arguments]
            self._thread = threading.Thread(target=self._run, args=(line,), daemon=True)
            self._thread.start()

    def _run(self, line: list[str]) -> None:
        with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for told in process.stdout:
                print(told, end="", flush=True)
                try:
                    facts = json.loads(told)
                except ValueError:
                    continue
                if isinstance(facts, dict):
                    self.last = facts
        if not self.last.keys() & {"result", "error"}:
            detail = f"the job ended with exit code {process.returncode}: the pod's log tells more"
            self.last = {"error": {"code": "FAILED", "detail": detail}}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    job: Job

    def do_GET(self) -> None:
        if self.path == "/job":
            self._answer(200, self.job.last)
        elif self.path == "/file" and "result" in self.job.last and self.job.file.exists():
            self.send_response(200)
            self.send_header("Content-Length", str(self.job.file.stat().st_size))
            self.end_headers()
            with self.job.file.open("rb") as file:
                shutil.copyfileobj(file, self.wfile, CHUNK_BYTES)
        else:
            self._answer(404, {"detail": f"there is no {self.path[:80]} now"})

    def do_PUT(self) -> None:
        size = self._length()
        if self.path != "/file" or size < 0:
            self._answer(400, {"detail": "PUT /file with Content-Length is expected"})
            return
        try:
            left = self._receive(size)
        except OSError as error:
            self.job.file.unlink(missing_ok=True)
            self.close_connection = True
            text = f"the pod cannot take the {size} bytes of the file: {error}"
            self._answer(507, {"code": "NO_SPACE", "detail": f"{text}; its node needs room for them"})
            return
        if left:
            self.job.file.unlink()
            self.close_connection = True
            return
        self._answer(200, {"bytes": size})

    def _length(self) -> int:
        """Bytes of the body; -1 when that is not said."""
        text = self.headers.get("Content-Length", "")
        return int(text) if text.isascii() and text.isdigit() and len(text) <= LENGTH_DIGITS_MAX else -1

    def _receive(self, left: int) -> int:
        """Write the body to the file; how much of it did not come."""
        with self.job.file.open("wb") as file:
            while left and (data := self.rfile.read(min(CHUNK_BYTES, left))):
                file.write(data)
                left -= len(data)
        return left

    def do_POST(self) -> None:
        try:
            order = json.loads(self.rfile.read(max(0, min(self._length(), BODY_BYTES_MAX))))
            command, arguments = str(order["command"]), [str(each) for each in order["arguments"]]
        except (ValueError, KeyError, TypeError):
            self._answer(400, {"detail": "POST /job with command and arguments is expected"})
            return
        if self.path != "/job" or command not in ("load", "dump"):
            self._answer(400, {"detail": f"command is {command[:40]!r}; load or dump is expected"})
            return
        self.job.start(command, arguments)
        self._answer(200, self.job.last)

    def _answer(self, status: int, facts: dict[str, Any]) -> None:
        body = json.dumps(facts).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Not a line for every question of how far the job is."""


def serve(port: int, folder: Path) -> int:
    """Until the process is ended from outside."""
    handler = type("Handler", (_Handler,), {"job": Job(folder)})
    ThreadingHTTPServer(("", port), handler).serve_forever()
    return 0
