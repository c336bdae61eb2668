"""What vLLM would compile is compiled in the gateway's process for it: every kind, good, bad, and
without end."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
import structlog

from common.config import from_mapping
from common.errors import BatonError, Code
from common.messages import Structured, StructureKind
from services.gateway.auth.caller import ANONYMOUS
from services.gateway.helper.grammars import Grammars
from services.gateway.helper.pool import HelperPool

pytestmark = pytest.mark.timeout(300)


def nested(levels: int) -> Any:
    """Three properties at each level, each all of the next."""
    if not levels:
        return {"type": "string"}
    inner = nested(levels - 1)
    properties = {f"p{n}": inner for n in range(3)}
    return {"type": "object", "properties": properties, "required": ["p0"]}


TAG = {
    "structures": [{"begin": "<a>", "schema": {"type": "object"}, "end": "</a>"}],
    "triggers": ["<a>"],
}
GOOD = [
    (StructureKind.JSON, '{"type":"object","properties":{"a":{"type":"string"}}}'),
    (StructureKind.JSON, "{}"),
    (StructureKind.JSON_OBJECT, ""),
    (StructureKind.REGEX, r"\d{3}-[a-f]+"),
    (StructureKind.CHOICE, '["yes","no"]'),
    (StructureKind.GRAMMAR, 'root ::= "a" | "b"'),
    (StructureKind.STRUCTURAL_TAG, json.dumps(TAG)),
]
BAD = [
    (StructureKind.JSON, '{"type":'),
    (StructureKind.JSON, ""),
    (StructureKind.JSON, json.dumps({"type": "string", "pattern": "((("})),
    (StructureKind.REGEX, "((("),
    (StructureKind.REGEX, "a\x00"),
    (StructureKind.CHOICE, "[]"),
    (StructureKind.GRAMMAR, "root ::= ((("),
    (StructureKind.STRUCTURAL_TAG, "{}"),
]
LIMIT = "gateway.limits.grammar_ms_max"
MS_MAX = 1_000
ENDLESS = [
    (StructureKind.REGEX, ".*" * 1500),
    (StructureKind.JSON, json.dumps(nested(8))),
]


async def longest_pause(stop: asyncio.Event) -> float:
    """Seconds for which this loop did nothing else: what a stream would have waited."""
    worst = 0.0
    while not stop.is_set():
        before = time.monotonic()
        await asyncio.sleep(0.005)
        worst = max(worst, time.monotonic() - before)
    return worst


async def told(grammars: Grammars, kind: StructureKind, source: str) -> str:
    """The refusal; empty for what compiles."""
    try:
        await grammars.check(Structured(kind=kind, source=source), ANONYMOUS)
    except BatonError as error:
        return f"{error.code.value} {error.message}"
    return ""


async def test_what_compiles_passes_what_does_not_is_refused_and_the_endless_is_killed() -> None:
    config = from_mapping({"gateway": {"limits": {"grammar_ms_max": MS_MAX}}})
    pool = HelperPool(config, "vllm", structlog.get_logger("test"))
    grammars = Grammars(pool, config.gateway.limits)
    stop = asyncio.Event()
    try:
        async with asyncio.TaskGroup() as group:
            pause = group.create_task(longest_pause(stop))
            heard = {about: await told(grammars, *about) for about in GOOD + BAD + ENDLESS}
            stop.set()
    finally:
        pool.close()
    assert [about for about in GOOD if heard[about]] == []
    assert [about for about in BAD if not heard[about] or LIMIT in heard[about]] == []
    assert [about[1][:20] for about in ENDLESS if LIMIT not in heard[about]] == []
    assert all(told.startswith(Code.INVALID_REQUEST) for told in heard.values() if told)
    assert pause.result() < MS_MAX / 1000
