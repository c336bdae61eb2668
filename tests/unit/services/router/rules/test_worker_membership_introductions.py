"""Pairs that may hand KV over are introduced once both are ready: no request pays for it."""

from common.blocks import Kept, KvGroup
from common.messages import Introduce, Role
from services.router.rules.worker_membership import TAKERS_MAX
from tests.rigs.messages import worker_hello
from tests.unit.services.router.rig import Rig


def test_whoever_comes_second_the_decode_worker_hears_of_the_prefill_worker() -> None:
    for order in ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)):
        rig = Rig()
        for role in order:
            rig.worker(role, {Role.PREFILL: "p0", Role.DECODE: "d0"}[role])
        address = rig.row("p0|1").kv_address
        assert address
        assert rig.take(Introduce) == [Introduce(kv_address=address, prefill="p0")]
        assert not rig.take(Introduce, "p0|1")


def test_nobody_is_introduced_before_being_ready_or_to_another_fingerprint() -> None:
    rig = Rig()
    rig.receive("p0|1", worker_hello(Role.PREFILL, "p0"))
    rig.decode("d0")
    assert rig.take(Introduce) == []
    rig.beat("p0|1")
    assert len(rig.take(Introduce, "d0|1")) == 1
    rig.prefill("p1", fingerprint="other")
    assert rig.take(Introduce) == []


def test_a_new_incarnation_is_introduced_again() -> None:
    rig = Rig()
    rig.prefill("p0")
    rig.decode("d0")
    rig.take(Introduce)
    rig.prefill("p0", incarnation="2")
    assert len(rig.take(Introduce, "d0|1")) == 1
    rig.decode("d0", incarnation="2")
    assert len(rig.take(Introduce, "d0|2")) == 1


def test_decode_workers_connect_both_ways_before_any_stream_moves() -> None:
    rig = Rig()
    rig.decode("d0")
    assert rig.take(Introduce) == []
    rig.decode("d1")
    assert [told.kv_address for told in rig.take(Introduce, "d1|1")] == [rig.row("d0|1").kv_address]
    assert [told.kv_address for told in rig.take(Introduce, "d0|1")] == [rig.row("d1|1").kv_address]
    rig.decode("d2", fingerprint="other")
    assert rig.take(Introduce) == []


def test_a_decode_worker_of_a_large_fleet_connects_with_the_last_few() -> None:
    rig = Rig()
    names = [f"d{number}" for number in range(TAKERS_MAX + 2)]
    for name in names:
        rig.decode(name)
    rig.take(Introduce)
    rig.decode("new")
    told = {message.kv_address for message in rig.take(Introduce, "new|1")}
    assert told == {rig.row(f"{name}|1").kv_address for name in names[-TAKERS_MAX:]}


def test_workers_whose_streams_cannot_move_do_not_connect() -> None:
    rig = Rig()
    for name in ("d0", "d1"):
        rig.decode(name, groups=(KvGroup(16, Kept.WINDOW, 32),))
    assert rig.take(Introduce) == []
