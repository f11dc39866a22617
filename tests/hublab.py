"""A hub on this machine: `busy/...` is turned away, `me/...` has the files it is given, anything else has none."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def local_hub(files: dict[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """Its address, and the requests so far as `METHOD /path`."""
    seen: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def _answer(self) -> None:
            path = self.path.partition("?")[0]
            seen.append(f"{self.command} {path}")
            name = path.rpartition("/")[2]
            body = files.get(name) if path.startswith("/me/") and "/resolve/" in path else None
            if "/busy/" in path:
                self.send_response(429)
            elif body is None:
                self.send_response(404)
                self.send_header("X-Error-Code", "EntryNotFound")
            else:
                self.send_response(200)
                self.send_header("ETag", f'"{name}"')
            self.send_header("X-Repo-Commit", "0" * 40)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body or b"")

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
