"""Hubs on this machine, for the hub's own client."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Answer = tuple[int, bytes, dict[str, str]]
"""Status, body and headers beside those that every answer has."""


@contextmanager
def serving(answer: Callable[[str], Answer]) -> Iterator[tuple[str, list[str]]]:
    """A hub that answers to a path; its address, and the requests so far as `METHOD /path`."""
    seen: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def _answer(self) -> None:
            path = self.path.partition("?")[0]
            seen.append(f"{self.command} {path}")
            status, body, headers = answer(path)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("X-Repo-Commit", "0" * 40)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_GET = do_HEAD = _answer

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def local_hub(files: dict[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """`busy/...` is turned away, `me/...` has the files it is given, anything else has none. See `serving`."""

    def answer(path: str) -> Answer:
        name = path.rpartition("/")[2]
        body = files.get(name) if path.startswith("/me/") and "/resolve/" in path else None
        if "/busy/" in path:
            return 429, b"", {}
        if body is None:
            return 404, b"", {"X-Error-Code": "EntryNotFound"}
        return 200, body, {"ETag": f'"{name}"'}

    with serving(answer) as hub:
        yield hub
