"""`/docs`: the OpenAPI document as a page for people. It loads nothing and runs nothing."""

from __future__ import annotations

from html import escape
from typing import Any

import msgspec

#: The page needs its own style and nothing else.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "code{font-family:ui-monospace,monospace}table{border-collapse:collapse}"
    "td,th{border:1px solid #8888;padding:.2rem .6rem;text-align:left;vertical-align:top}"
    "summary{cursor:pointer;margin:.4rem 0}@media(prefers-color-scheme:dark){"
    "body{background:#111;color:#ddd}}"
)


def docs_page(document: bytes) -> bytes:
    """`document`: of `openapi.py`."""
    about = msgspec.json.decode(document)
    title = f"{about['info']['title']} {about['info']['version']}"
    routes = [
        _route(method, path, operation)
        for path, operations in about["paths"].items()
        for method, operation in operations.items()
    ]
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title>"
        f"<style>{STYLE}</style><h1>{escape(title)}</h1>"
        "<p>The same as a document for programs: <a href=openapi.json>openapi.json</a></p>"
        f"{''.join(routes)}</html>"
    ).encode()


def _route(method: str, path: str, operation: dict[str, Any]) -> str:
    content = operation.get("requestBody", {}).get("content", {})
    fields = "".join(
        f"<h4>Body, {escape(kind)}</h4>{_fields(body['schema'])}" for kind, body in content.items()
    )
    answers = "".join(
        f"<tr><td>{escape(status)}<td>{escape(answer['description'])}"
        for status, answer in operation["responses"].items()
    )
    return (
        f"<details><summary><code>{escape(method.upper())} {escape(path)}</code></summary>"
        f"{fields}<h4>Answers</h4><table>{answers}</table></details>"
    )


def _fields(schema: dict[str, Any]) -> str:
    required = frozenset(schema.get("required", ()))
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code><td>{'required' if name in required else ''}"
        f"<td><code>{escape(msgspec.json.encode(kind).decode()) if kind else ''}</code>"
        for name, kind in schema["properties"].items()
    )
    return f"<table>{rows}</table>"
