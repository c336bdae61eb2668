"""Replicated and single: the same router, and nobody is paired."""

from typing import Any

import pytest

from common.config import reading
from common.errors import ConfigError
from common.messages import Decode, Introduce, Prefill, Refused, Role, Welcome
from tests.rigs.messages import worker_hello
from tests.unit.services.router.rig import Rig


def rig_in(mode: str, decodes: int) -> Rig:
    rig = Rig(mode=mode, remote_prefill="auto")
    rig.gateway()
    for i in range(decodes):
        rig.decode(f"d{i}")
    return rig


def test_replicated_workers_do_both_and_share_the_load() -> None:
    rig = rig_in("replicated", 3)
    for i in range(6):
        rig.submit(f"r{i}", prompt=400)
    assert sorted(send.peer for send in rig.sent if isinstance(send.message, Decode)) == [
        "d0|1",
        "d0|1",
        "d1|1",
        "d1|1",
        "d2|1",
        "d2|1",
    ]
    assert all(order.ticket is None for order in rig.take(Decode))
    assert not rig.take(Prefill)
    assert not [told for told in rig.take(Introduce) if told.prefill]
    placement = rig.known("r0").placement
    assert placement is not None
    assert "mode is replicated, every worker does both" in placement.sentence


def test_what_a_worker_still_computes_counts_until_its_first_token() -> None:
    rig = rig_in("replicated", 2)
    rig.submit("a", prompt=400)
    assert (rig.row("d0|1").queued_tokens, rig.row("d1|1").queued_tokens) == (400, 0)
    rig.started("a", kv=None)
    assert rig.row("d0|1").queued_tokens == 0
    rig.submit("b", prompt=400)
    rig.cancel("b")
    rig.ended("b", peer="d1|1", error="cancelled")
    rig.ended("a")
    assert rig.nothing_held()


@pytest.mark.parametrize("mode", ["replicated", "single"])
def test_a_prefill_worker_is_refused_and_told_why(mode: str) -> None:
    rig = rig_in(mode, 1)
    rig.sent.clear()
    rig.receive("p0|1", worker_hello(Role.PREFILL, "p0"))
    (refused,) = rig.take(Refused, "p0|1")
    assert f"no place in mode {mode}: start it as a decode worker" in refused.message


def test_single_is_one_worker_whose_successor_is_welcome() -> None:
    rig = rig_in("single", 1)
    rig.sent.clear()
    rig.receive("d1|1", worker_hello(Role.DECODE, "d1"))
    assert "one too many in mode single, d0 is here" in rig.take(Refused, "d1|1")[0].message
    rig.receive("d0|2", worker_hello(Role.DECODE, "d0", "2"))
    assert rig.take(Welcome, "d0|2")


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (
            {"router": {"mode": "replicated"}, "prefill": {"p0": {}}, "decode": {"d0": {}}},
            "router.mode: replicated has no prefill workers, but the file has [prefill.p0]",
        ),
        (
            {"router": {"mode": "single"}, "decode": {"d0": {}, "d1": {}}},
            "router.mode: single is exactly one decode worker, but the file has 2",
        ),
        (
            {"router": {"mode": "replicated", "remote_prefill": "always"}, "decode": {"d0": {}}},
            'router.remote_prefill: "always" needs prefill workers',
        ),
        ({"router": {"mode": "both"}}, "allowed: 'disaggregated', 'replicated', 'single'"),
        ({"router": {"policy": "best"}}, "allowed: 'cost', 'least_loaded'"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(raw: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        reading.from_mapping(raw)
    assert says in refused.value.message


def test_files_that_do_not() -> None:
    for raw in (
        {"router": {"mode": "replicated"}, "decode": {"d0": {}, "d1": {}}},
        {"router": {"mode": "single"}, "decode": {"d0": {}}},
        {"router": {"remote_prefill": "always"}, "decode": {"d0": {}}},
    ):
        reading.from_mapping(raw)
