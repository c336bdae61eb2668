"""What policies go by reaches them through the core."""

import pytest

from common.messages import Decode, Prefill
from services.router.events import PolicyChosen
from tests.unit.services.router.rig import Rig


def fleet(policy: str) -> Rig:
    rig = Rig(policy=policy)
    rig.gateway()
    for i in range(3):
        rig.prefill(f"p{i}")
        rig.decode(f"d{i}")
    return rig


def went(rig: Rig, name: str, session: str = "") -> str:
    """`P D`, by name."""
    rig.sent.clear()
    rig.submit(name, session=session)
    kinds = (Prefill, Decode)
    peers = [[s.peer for s in rig.sent if isinstance(s.message, kind)] for kind in kinds]
    return " ".join(peer.rpartition("|")[0] for found in peers for peer in found)


def test_round_robin_goes_round_both_roles() -> None:
    rig = fleet("round_robin")
    turns = [went(rig, f"r{i}") for i in range(6)]
    assert turns == ["p0 d0", "p1 d1", "p2 d2"] * 2


@pytest.mark.parametrize("policy", ["cost", "least_loaded", "prefix_affinity", "round_robin"])
def test_workers_that_are_equal_are_used_in_turn(policy: str) -> None:
    rig = fleet(policy)
    turns = []
    for i in range(6):
        turns.append(went(rig, f"r{i}"))
        prefill, decode = turns[-1].split()
        rig.prefilled(f"r{i}", peer=f"{prefill}|1")
        rig.started(f"r{i}", peer=f"{decode}|1")
        rig.ended(f"r{i}", peer=f"{decode}|1")
    assert sorted(turns[:3]) == ["p0 d0", "p1 d1", "p2 d2"]
    assert turns[3:] == turns[:3]


def test_a_session_stays() -> None:
    rig = fleet("session_affinity")
    homes = {name: went(rig, f"first {name}", name) for name in "abcdef"}
    assert len(set(homes.values())) > 1
    for name, home in homes.items():
        assert went(rig, f"second {name}", name) == home


def test_a_policy_set_live_is_for_what_comes_next() -> None:
    rig = fleet("round_robin")
    assert went(rig, "r1") == "p0 d0"
    rig.handle(PolicyChosen("session_affinity", "never"))
    homes = {went(rig, f"s{i}", "mine") for i in range(3)}
    assert len(homes) == 1
    assert homes <= {"d0", "d1", "d2"}, "nobody prefills for it"
