"""Workers change their role under every fault, in whatever phase their requests are, while routers
die and orders are taken back: every promise holds, and no request is lost."""

from __future__ import annotations

import pytest

from common.messages import Become, Hello
from common.worker.roles import RoleCores
from services.router.events import Action
from services.router.records.worker import Worker
from services.router.rules import worker_membership
from services.router.tables import Tables
from tests.simulation.mutants import planted
from tests.simulation.world.clock import PromiseBrokenError
from tests.simulation.world.world import World

SEEDS = range(900, 960)


def run_all() -> list[World]:
    worlds = [World(seed, roles=True) for seed in SEEDS]
    for world in worlds:
        world.run()
    return worlds


@pytest.mark.timeout(300)
def test_every_promise_holds_and_roles_change_often() -> None:
    roles = [world.fleet.tally.roles for world in run_all()]
    assert sum(map(len, roles)) > len(SEEDS)
    assert any(epoch > 1 for changed in roles for _, epoch in changed), "and back again"


def test_a_drained_workers_stream_has_no_room_where_a_suspected_prompt_is_tried() -> None:
    World(2582, roles=True).run()


@pytest.mark.timeout(300)
def test_a_worker_that_changes_its_role_before_it_is_empty_is_noticed() -> None:
    def change(cores: RoleCores, now: float) -> bool:
        if cores.becomes is None:
            return False
        cores.role, cores.becomes = cores.becomes, None
        cores.epoch, cores.since = cores.epoch + 1, now
        return True

    with planted(RoleCores, "change", change), pytest.raises((PromiseBrokenError, AssertionError)):
        run_all()


@pytest.mark.timeout(300)
def test_a_role_that_is_taken_twice_in_an_epoch_is_noticed() -> None:
    def ordered(cores: RoleCores, order: Become) -> None:
        cores.becomes, cores.epoch = order.role, order.epoch - 2

    with planted(RoleCores, "_ordered", ordered), pytest.raises(PromiseBrokenError):
        run_all()


@pytest.mark.timeout(300)
def test_a_router_that_gives_up_nothing_is_noticed() -> None:
    """What it placed too late would wait for ever."""
    change_role = worker_membership._change_role

    def keep(tables: Tables, before: Worker, hello: Hello, now: float) -> list[Action]:
        held = dict(before.held)
        actions = change_role(tables, before, hello, now)
        tables.workers[before.identity].held = held
        return actions

    with planted(worker_membership, "_change_role", keep), pytest.raises(PromiseBrokenError):
        run_all()
