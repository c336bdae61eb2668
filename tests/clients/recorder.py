"""A proxy between a client and a server that keeps what was asked, and what became of it.

A recorded body keeps the names of fields, numbers, and short words such as roles, types and tools.
Texts, ids and everything else that a client says of its host are replaced, so that only the shape
of the request remains.
"""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,39}")
#: Ids that clients and servers make at random.
RANDOM = re.compile(r"([A-Za-z]+[_-])*[0-9a-f]{8,}(-[0-9a-f]+)*|[A-Za-z]+[_-][A-Za-z0-9]{12,}")
#: Names of fields whose text is a client's own.
TEXTS = frozenset({"description", "instructions", "text", "thinking", "output", "pattern", "title"})
#: Names of fields with a tool's schema; an agent's own tools are recorded without theirs.
SCHEMAS = frozenset({"parameters", "input_schema"})
TEXT = "Some words."
ITEMS_MAX = 3
SECONDS = 300


@dataclass(frozen=True)
class Recorded:
    method: str
    path: str
    #: None: it was no JSON.
    body: Any
    status: int


class Recorder:
    def __init__(self, upstream: str) -> None:
        self.requests: list[Recorded] = []
        at = urlsplit(upstream)
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self._pass_on("POST")

            def do_GET(self) -> None:
                self._pass_on("GET")

            def _pass_on(self, method: str) -> None:
                data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                left_out = {"host", "connection", "content-length", "accept-encoding"}
                headers = {k: v for k, v in self.headers.items() if k.lower() not in left_out}
                connection = http.client.HTTPConnection(str(at.hostname), at.port, timeout=SECONDS)
                connection.request(method, self.path, data, headers)
                answer = connection.getresponse()
                body = answer.read()
                recorder.keep(method, self.path, data, answer.status)
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.headers.get("Content-Type", ""))
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Not on the terminal."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def keep(self, method: str, path: str, data: bytes, status: int) -> None:
        try:
            body = json.loads(data)
        except ValueError:
            body = None
        self.requests.append(Recorded(method, path, body, status))


@contextmanager
def recorded(upstream: str) -> Iterator[Recorder]:
    recorder = Recorder(upstream)
    threading.Thread(target=recorder.server.serve_forever, daemon=True).start()
    try:
        yield recorder
    finally:
        recorder.server.shutdown()
        recorder.server.server_close()


def shape(value: Any, name: str = "") -> Any:
    """`value` without what is a client's own."""
    if isinstance(value, dict) and name in SCHEMAS and set(value.get("properties", ())) - {"city"}:
        return {
            key: {} if key == "properties" else [] if key == "required" else shape(inner)
            for key, inner in value.items()
        }
    if isinstance(value, dict):
        return {key: shape(inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        kept = (
            value
            if name in {"messages", "input", "content", "enum", "required"}
            else value[:ITEMS_MAX]
        )
        return [shape(inner, name) for inner in kept]
    if not isinstance(value, str):
        return value
    if name == "arguments":
        return json.dumps(shape(json.loads(value)))
    if name in TEXTS or not WORD.fullmatch(value):
        return TEXT
    return "id-1" if RANDOM.fullmatch(value) else value
