"""Chats with images as a gateway's helper renders them, by a process of its own.

Reads {"model", "chats"} as JSON on stdin, writes a list of `RenderedPrompt` as MessagePack.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from common.config import from_mapping
from services.gateway.api.routes import Route
from services.gateway.full_api.port import RenderedPrompt

ROOT = Path(__file__).parents[3]


def rendered(model: Path, chats: list[list[dict[str, Any]]]) -> list[RenderedPrompt]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.e2e.engine.rendered"],
        input=json.dumps({"model": str(model), "chats": chats}).encode(),
        capture_output=True,
        timeout=280,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return msgspec.msgpack.decode(done.stdout, type=list[RenderedPrompt])


def main() -> None:
    from services.gateway.full_api.vllm.build import build_helper

    question = json.load(sys.stdin)
    model = Path(question["model"])
    config = from_mapping({"model": {"path": str(model), "dtype": "float32"}})
    checker, _ = build_helper(config, model)
    prompts = []
    for chat in question["chats"]:
        body = json.dumps({"messages": chat}).encode()
        checked = asyncio.run(checker.check(Route.CHAT, body, 2048, {}))
        prompts += checked.prompts or []
    sys.stdout.buffer.write(msgspec.msgpack.encode(prompts))


if __name__ == "__main__":
    main()
