"""A million bent frames, seeded. `make soak-frames` goes on with other seeds."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from common.errors import WireError
from common.messages import Beat, Load, WorkerToRouter
from common.net.wire import Decoder
from tests.fuzz import frames
from tests.fuzz.frames import UNIONS, FrameFaultError, attack, attack_slots
from tests.fuzz.gateway import attack_gateway
from tests.fuzz.router import attack_admin_of_a_router, attack_router

FRAMES = 1_000_000
ADMIN_FRAMES = 20_000
SEED = 1


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", UNIONS)
def test_bent_frames_are_messages_of_the_union_or_refused(name: str) -> None:
    tally = attack(name, FRAMES // len(UNIONS) + 1, SEED)
    assert tally.messages > 1_000, "too bent to test what comes after the first byte"
    assert tally.refused > 1_000


def test_a_bent_control_slot_comes_out_as_it_went_in_or_not_at_all() -> None:
    tally = attack_slots(10_000, SEED)
    assert min(tally.messages, tally.refused) > 1_000


@pytest.mark.timeout(300)
def test_the_admin_socket_answers_whatever_it_is_asked() -> None:
    tally = attack_admin_of_a_router(ADMIN_FRAMES, SEED)
    assert min(tally.messages, tally.refused) > 500


@pytest.mark.timeout(300)
def test_a_router_core_survives_what_well_formed_messages_can_say() -> None:
    counts = [attack_router(1_000, seed).tables.counts for seed in range(6)]
    placed, ended = sum(count.placed for count in counts), sum(count.ended for count in counts)
    assert min(placed, ended) > 60, "the messages did not fit together"


@pytest.mark.timeout(300)
def test_a_gateway_core_survives_what_well_formed_messages_can_say() -> None:
    taken = [attack_gateway(400, seed) for seed in range(20)]
    assert sum(taken) > 100, "no message fitted a stream"


def test_the_attack_sees_a_decoder_that_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    class Careless(Decoder[Any]):
        def decode(self, frame: bytes | memoryview) -> Any:
            return msgspec.msgpack.decode(frame)

    monkeypatch.setattr(frames, "Decoder", Careless)
    with pytest.raises(FrameFaultError):
        attack("KvPeerMessage", 1_000, SEED)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300])
def test_a_number_that_nobody_can_calculate_with_is_refused(value: float) -> None:
    frame = msgspec.msgpack.encode(Beat(load=Load(kv_used=value)))
    with pytest.raises(WireError):
        Decoder[WorkerToRouter](WorkerToRouter).decode(frame)
