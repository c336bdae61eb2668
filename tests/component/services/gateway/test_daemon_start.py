"""A gateway that loads vLLM's text classes before it is ready is there for its router meanwhile."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from common.messages import Beat
from services.gateway.http.model_parts import ModelParts
from tests.component.services.gateway.rig import FakeRouter, MakeRig
from tests.rigs.peers import WAIT_SECONDS

BEATS = 3


async def test_it_beats_while_it_loads(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    beats, seen, heard = [], threading.Event(), FakeRouter.on_frames

    def on_frames(router: FakeRouter, frames: list[bytes]) -> None:
        heard(router, frames)
        beats.extend([frames] * isinstance(router.decoded(frames), Beat))
        if len(beats) == BEATS:
            seen.set()

    def load() -> Any:
        assert seen.wait(WAIT_SECONDS), f"{len(beats)} beats while the text classes were loaded"
        return None

    monkeypatch.setattr(FakeRouter, "on_frames", on_frames)
    monkeypatch.setattr(ModelParts, "_loader", lambda *_: load)
    rig = await make_rig(text="vllm")
    assert rig.gateway.http_address[1], "it is ready after that"
