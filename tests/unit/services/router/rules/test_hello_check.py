"""Whose Hello is accepted: the host's right to the name, and the model of a decode worker."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from common.messages import Beat, Hello, Load, Refused, Role, Welcome
from common.security.speaker import Speaker
from services.router.events import Note, Received
from services.router.records.states import WorkerState
from tests.rigs.messages import hello, worker_hello
from tests.unit.services.router.rig import Rig

A, B = Speaker("a"), Speaker("b")


def says(rig: Rig, message: Hello, speaker: Speaker | None) -> bool:
    """Whether the Hello is welcomed."""
    peer = f"{message.name}|{message.incarnation}"
    rig.sent.clear()
    rig.handle(Received(peer, message, speaker=speaker))
    welcomed, refused = rig.take(Welcome, peer), rig.take(Refused, peer)
    assert len(welcomed) + len(refused) == 1
    return bool(welcomed)


def with_d0(speaker: Speaker | None = A) -> Rig:
    rig = Rig()
    assert says(rig, worker_hello(Role.DECODE, "d0"), speaker)
    rig.beat("d0|1")
    return rig


def claims(rig: Rig) -> int:
    return rig.core.tables.counts.dropped.get("identity refused", 0)


def test_a_live_worker_is_replaced_by_its_own_host_only() -> None:
    rig = with_d0()
    newer = worker_hello(Role.DECODE, "d0", "2")
    assert not says(rig, newer, B)
    assert rig.row("d0|1").state is WorkerState.READY
    assert "d0|2" not in rig.core.tables.workers
    assert claims(rig) == 1
    assert says(rig, newer, A)
    assert rig.core.shared.fenced == {"d0|1": "d0|2"}


def test_a_name_that_is_gone_goes_to_another_host_only_if_the_list_says_so() -> None:
    rig = with_d0()
    rig.gone("d0|1")
    newer = worker_hello(Role.DECODE, "d0", "2")
    assert not says(rig, newer, B)
    assert says(rig, newer, Speaker("b", listed=True))


def test_a_listed_name_does_not_replace_a_live_worker_of_another_host() -> None:
    assert not says(with_d0(), worker_hello(Role.DECODE, "d0", "2"), Speaker("b", listed=True))


@pytest.mark.parametrize("state", ["suspect", "ejected", "draining"])
def test_a_worker_in_trouble_is_live(state: str) -> None:
    rig = with_d0()
    rig.decode("d1")
    rig.decode("d2")
    if state == "draining":
        rig.leave("d0|1")
    else:
        rig.tick(2.0 if state == "suspect" else 5.0, alive=("d1|1", "d2|1"))
    assert rig.row("d0|1").state.value == state
    assert not says(rig, worker_hello(Role.DECODE, "d0", "2"), Speaker("b", listed=True))


def test_a_gateway_is_replaced_by_its_own_host_only() -> None:
    rig = Rig()
    first = hello(Role.GATEWAY, "g0", "1", stream_endpoint="tcp://a")
    newer = hello(Role.GATEWAY, "g0", "2", stream_endpoint="tcp://b")
    assert says(rig, first, A)
    assert not says(rig, newer, B)
    assert not rig.core.tables.gateways["g0|1"].gone
    rig.gone("g0|1")
    assert not says(rig, newer, B)
    assert says(rig, newer, A)


def test_what_the_allow_list_denies_is_refused_with_its_reason() -> None:
    rig = Rig()
    rig.handle(
        Received("d9|1", worker_hello(Role.DECODE, "d9"), speaker=Speaker("b", "its roles are x"))
    )
    (refused,) = rig.take(Refused)
    assert refused.message == "host b may not speak for decode d9: its roles are x"
    assert claims(rig) == 1


def test_attempts_are_counted_each_and_logged_at_a_bounded_rate() -> None:
    rig = with_d0()
    newer = worker_hello(Role.DECODE, "d0", "2")
    notes = []
    for _ in range(30):
        notes += [
            action
            for action in rig.handle(Received("d0|2", newer, speaker=B))
            if isinstance(action, Note)
        ]
        rig.now += 0.5
        rig.receive("d0|1", Beat(load=Load(running=1)))
    assert claims(rig) == 30
    assert [(note.event, note.fields["host"]) for note in notes] == [("identity.refused", "b")] * 2


def test_without_keys_a_new_incarnation_takes_the_place_of_the_older() -> None:
    assert says(with_d0(None), worker_hello(Role.DECODE, "d0", "2"), None)


PARTS = {"model": "m", "config": "c1", "weights": "w1", "block_tokens": "16"}


@pytest.mark.parametrize(
    ("other", "names"),
    [
        ({"weights": "w2"}, "weights w1 ≠ w2"),
        ({"config": "c2"}, "config c1 ≠ c2"),
        ({"model": "n"}, "model m ≠ n"),
        ({"block_tokens": "32"}, ""),
    ],
)
def test_a_decode_worker_of_another_model_is_refused(other: dict[str, str], names: str) -> None:
    rig = Rig()
    rig.worker(Role.DECODE, "d0", fingerprint_parts=PARTS)
    rig.sent.clear()
    greeting = worker_hello(Role.DECODE, "d1", fingerprint_parts=PARTS | other, fingerprint="g")
    rig.receive("d1|1", greeting)
    refused = rig.take(Refused, "d1|1")
    if names:
        assert refused[0].message == f"decode d1 has another model than d0: {names}"
    else:
        assert not refused


def test_a_model_by_another_name_is_refused_though_nothing_is_said_of_its_weights() -> None:
    rig = Rig()
    rig.decode("d0")
    other = msgspec.structs.replace(worker_hello(Role.DECODE, "d1"), model="n")
    assert not says(rig, other, None)


@pytest.mark.parametrize("left", ["gone", "the same name"])
def test_another_model_follows_when_the_decode_workers_of_the_first_have_left(left: str) -> None:
    rig = Rig()
    rig.worker(Role.DECODE, "d0", fingerprint_parts=PARTS)
    if left == "gone":
        rig.gone("d0|1")
    name = "d1" if left == "gone" else "d0"
    more: dict[str, Any] = {"fingerprint_parts": PARTS | {"weights": "w2"}, "fingerprint": "g"}
    assert says(rig, worker_hello(Role.DECODE, name, "2", **more), None)


def test_a_prefill_worker_of_another_model_is_only_never_paired() -> None:
    rig = Rig()
    rig.worker(Role.DECODE, "d0", fingerprint_parts=PARTS)
    more: dict[str, Any] = {"fingerprint_parts": PARTS | {"weights": "w2"}, "fingerprint": "g"}
    assert says(rig, worker_hello(Role.PREFILL, "p0", **more), None)
