"""Pairs of workers that do not hand KV over, from the router's rows to a sentence."""

from __future__ import annotations

from pathlib import Path

import msgspec

from common.messages import Beat, KvCounts, KvUnreachable, Load
from common.net.admin_rows import PairRow
from common.process.flapping_file import write_flapping
from services.health.verdicts.host_verdict import HealthLevel
from services.health.verdicts.probes import flapping_probes, pair_probes
from tests.unit.common.net.rows import PAIR
from tests.unit.services.router.admin.verbs.test_explain import ask
from tests.unit.services.router.rig import Rig, standard
from tests.unit.services.router.rules.test_operator import in_quarantine


def rows(rig: Rig) -> list[PairRow]:
    """As the health daemon asks for them."""
    return msgspec.convert(ask(rig, "pairs", trouble=True, limit=25), list[PairRow])


def beat(rig: Rig, *troubled_pairs: KvUnreachable, peer: str = "d0|1") -> None:
    rig.receive(peer, Beat(load=Load(), kv_counts=KvCounts(), kv_unreachable=troubled_pairs))


def missing(rig: Rig, name: str = "p0") -> KvUnreachable:
    return KvUnreachable(prefill=name, kv_address=rig.row(f"{name}|1").kv_address, for_ms=4_000.0)


def test_a_pair_that_is_not_connected_is_named_with_its_time() -> None:
    rig = standard()
    rig.prefill("p1")
    assert rows(rig) == []
    beat(rig, missing(rig))
    rig.now += 2.0
    (row,) = rows(rig)
    assert (row.prefill, row.decode, row.unreachable_s) == ("p0", "d0", 6.0)
    (probe,) = pair_probes([row])
    assert (probe.name, probe.verdict) == ("pair:p0>d0", HealthLevel.DEGRADED)
    assert probe.sentence == "p0→d0 unreachable over UCX for 6 s"
    assert [row["unreachable_s"] for row in ask(rig, "pairs")] == [6.0, None]
    beat(rig)
    assert rows(rig) == []


def test_a_prefill_worker_that_left_or_moved_is_not_missed() -> None:
    rig = standard()
    gone = missing(rig)
    beat(rig, gone)
    rig.gone("p0|1")
    assert rows(rig) == []
    rig.prefill("p0", "2")
    assert len(rows(rig)) == 1, "where it was before"
    beat(rig, KvUnreachable(prefill="p0", kv_address="elsewhere:1", for_ms=9_000.0))
    assert rows(rig) == []


def test_a_pair_in_quarantine_is_named_with_its_state() -> None:
    (row,) = rows(in_quarantine())
    (probe,) = pair_probes([row])
    assert probe.sentence == "p0→d0 hand no KV over: open"


def test_what_keeps_dying_degrades_its_host(tmp_path: Path) -> None:
    assert flapping_probes(tmp_path) == []
    write_flapping(tmp_path, {"d2": "died 9 times in a row"})
    (probe,) = flapping_probes(tmp_path)
    assert (probe.verdict, probe.sentence) == (HealthLevel.DEGRADED, "d2 died 9 times in a row")


def test_a_pair_that_works_is_no_news() -> None:
    assert pair_probes([PAIR]) == []
