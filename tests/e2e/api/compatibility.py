"""`docs/compatibility.md`, made of both: vLLM's routes and request models by introspection, Baton's
from the tables that requests are checked with. `python -m tests.e2e.api.compatibility` prints it.
"""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import structlog

from common.clock import SystemClock
from common.config import from_mapping
from common.model.embedded import ensure_embedded_model
from services.gateway.api.fields import WITHOUT_EFFECT
from services.gateway.api.routes import Route
from services.gateway.daemon import Gateway
from services.gateway.full_api.fields import HONOURED, REFUSED, STORED
from services.gateway.full_api.media import IMAGES, OTHERS
from services.gateway.http.unserved import unserved
from services.gateway.jobs.routes import ROUTES as JOB_ROUTES
from services.gateway.responses.conversation import STORE
from services.gateway.responses.routes import ROUTES as RESPONSE_ROUTES
from services.gateway.text.light import LightText
from tests.e2e.api.test_fields import models

PAGE = Path(__file__).parents[3] / "docs" / "compatibility.md"
HEAD = """\
# Compatibility with vLLM's server

`python -m tests.e2e.api.compatibility` makes this page of the pinned vLLM and of Baton; a test
keeps it true. The tables say what a request may ask for. That the answers are vLLM's is tested
field by field (`tests/e2e/api/test_same_as_vllm.py`), and with clients that people
use.

## Routes
"""
FIELDS = """
## Fields

- honoured: as vLLM does.
- refused: with 400 and its name, unless the value asks for nothing (null, or what is listed).
- without effect: known, and ignored; the answer names it in `x-ignored-fields`.
- not listed: ignored and named, or refused, by `[gateway] unknown_fields`.
"""
PARTS = f"""
## Parts of messages

- {", ".join(f"`{kind}`" for kind in IMAGES)}: images, for a model that takes them, within
  `[gateway.limits]`; PNG, JPEG, WebP and GIF (its first picture), in a `data:` URL or from a host
  of `[gateway] media_domains`.
- {", ".join(f"`{kind}`" for kind in OTHERS)}:
  refused with 400 and their place.
- `uuid` of a part: refused, since it would name an image to other clients.
"""
Routes = set[tuple[str, str]]


SERVED_BY_A_SETTING = {
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/v1/unload_lora_adapter"),
}
"""What vLLM has for those who ask for it, and Baton for keys of operators."""

BY_JOBS = {*JOB_ROUTES, *RESPONSE_ROUTES}
WITH_JOBS = "served with `[gateway.jobs] path`, else 501"
HONOURED_WITH_JOBS = "honoured with `[gateway.jobs] path`, else "


def page() -> str:
    return "\n".join([HEAD + table(route_rows()), PARTS, FIELDS, *map(field_section, Route)])


def route_rows() -> Iterator[list[str]]:
    yield ["route", "vLLM", "Baton"]
    ours, theirs = our_routes(), their_routes()
    refused = {(method, path): reason for method, path, reason in unserved()}
    for method, path in sorted({*ours, *theirs, *refused}, key=lambda route: route[::-1]):
        route = (method, path)
        by_setting = route in refused or route in SERVED_BY_A_SETTING
        vllm = "yes" if route in theirs else "by a setting" if by_setting else "-"
        answer = answer_of(refused.get(route), served=route in ours)
        yield [f"`{method} {path}`", vllm, WITH_JOBS if route in BY_JOBS else answer]


def answer_of(reason: str | None, *, served: bool) -> str:
    return "served" if served else f"501: {reason}" if reason else "404"


def our_routes() -> Routes:
    """Those that are served."""

    async def routes(run_dir: str) -> list[tuple[str, str]]:
        config = from_mapping({"gateway": {"text": "vllm"}, "fleet": {"run_dir": run_dir}})
        text = LightText(ensure_embedded_model())
        log = structlog.get_logger("page")
        name = config.model.served_name
        gateway = Gateway(config, "g0", {name: text}, {name: "/model"}, SystemClock(), log)
        return gateway.http_routes

    with TemporaryDirectory() as run_dir:
        served = {
            (method, path) for method, path in asyncio.run(routes(run_dir)) if method != "HEAD"
        }
    return served - {(method, path) for method, path, _ in unserved()}


def their_routes() -> Routes:
    """Of the server as it starts by default, and of every router that it may attach."""
    from vllm import entrypoints
    from vllm.entrypoints.launchers.app import build_app
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args([])
    found = set(methods(build_app(arguments, ("generate", "render")).routes))
    for module in pkgutil.walk_packages(entrypoints.__path__, "vllm.entrypoints."):
        if module.name.endswith(".api_router"):
            router = getattr(importlib.import_module(module.name), "router", None)
            found |= set(methods(router.routes if router is not None else ()))
    return found


def methods(routes: Any) -> Iterator[tuple[str, str]]:
    """A websocket begins with GET; what is mounted is shown where it is."""
    for route in routes:
        if type(route).__name__ == "Mount":
            continue
        for method in getattr(route, "methods", None) or {"GET"}:
            if method != "HEAD":
                yield method, route.path


def field_section(route: Route) -> str:
    theirs = {name for model in models(route) for name in model.model_fields}
    honoured, refused = HONOURED[route], REFUSED[route]
    rows = [["field", "vLLM", "Baton"]]
    for name in sorted({*theirs, *honoured, *refused}):
        if name in honoured:
            answer = "honoured"
        elif name in refused:
            allowed = ", ".join(f"`{value!r}`" for value in refused[name])
            answer = f"refused, unless {allowed}" if allowed else "refused"
        else:
            answer = "without effect"
            assert name in WITHOUT_EFFECT, (route, name)
        if route is Route.RESPONSES and name in {*STORED, STORE}:
            answer = HONOURED_WITH_JOBS + answer
        rows.append([f"`{name}`", "yes" if name in theirs else "-", answer])
    return f"\n### `POST {route.value}`\n\n{table(iter(rows))}"


def table(rows: Iterator[list[str]]) -> str:
    head = next(rows)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
