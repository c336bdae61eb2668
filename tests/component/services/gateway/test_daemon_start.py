"""A gateway that loads vLLM's text classes before it is ready is there for its router meanwhile."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from common.messages import Beat, Message
from services.gateway.daemon import Gateway
from tests.component.services.gateway.rig import WAIT_SECONDS, Inbox, MakeRig

BEATS = 3


async def test_it_beats_while_it_loads(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    beats, seen, put = [], threading.Event(), Inbox.put

    def note(inbox: Inbox, message: Message) -> None:
        put(inbox, message)
        beats.extend([message] * isinstance(message, Beat))
        if len(beats) == BEATS:
            seen.set()

    def load() -> Any:
        assert seen.wait(WAIT_SECONDS), f"{len(beats)} beats while the text classes were loaded"
        return None

    monkeypatch.setattr(Inbox, "put", note)
    monkeypatch.setattr(Gateway, "_loader", lambda *_: load)
    rig = await make_rig(text="vllm")
    assert rig.gateway.http_address[1], "it is ready after that"
