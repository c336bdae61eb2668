"""The transition tables: complete, with terminal states that nothing leaves."""

import itertools

import pytest

from common.transitions import IllegalTransitionError
from services.router.records.states import (
    ATTEMPT_TABLE,
    TERMINAL,
    WORKER_TABLE,
    AttemptEvent,
    AttemptState,
    WorkerEvent,
    WorkerState,
    next_state,
)


def test_every_state_has_a_row() -> None:
    assert set(ATTEMPT_TABLE) == set(AttemptState)
    assert set(WORKER_TABLE) == set(WorkerState)


def test_every_event_occurs() -> None:
    assert {event for row in ATTEMPT_TABLE.values() for event in row} == set(AttemptEvent)
    assert {event for row in WORKER_TABLE.values() for event in row} == set(WorkerEvent)


def test_terminal_states_are_exactly_those_without_a_way_out() -> None:
    assert {state for state, row in ATTEMPT_TABLE.items() if not row} == TERMINAL


def test_every_attempt_state_is_reached_from_queued() -> None:
    reached = {AttemptState.QUEUED}
    while more := {new for old in reached for new in ATTEMPT_TABLE[old].values()} - reached:
        reached |= more
    assert reached == set(AttemptState)


def test_every_worker_state_is_reached_from_joining() -> None:
    reached = {WorkerState.JOINING}
    while more := {new for old in reached for new in WORKER_TABLE[old].values()} - reached:
        reached |= more
    assert reached == set(WorkerState)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(AttemptState, AttemptEvent)))
def test_only_what_the_table_allows_is_allowed(state: AttemptState, event: AttemptEvent) -> None:
    if event in ATTEMPT_TABLE[state]:
        assert next_state("r", ATTEMPT_TABLE, state, event) is ATTEMPT_TABLE[state][event]
    else:
        with pytest.raises(IllegalTransitionError, match=f"r cannot go from {state.value}"):
            next_state("r", ATTEMPT_TABLE, state, event)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(WorkerState, WorkerEvent)))
def test_the_same_for_workers(state: WorkerState, event: WorkerEvent) -> None:
    if event in WORKER_TABLE[state]:
        assert next_state("w", WORKER_TABLE, state, event) is WORKER_TABLE[state][event]
    else:
        with pytest.raises(IllegalTransitionError):
            next_state("w", WORKER_TABLE, state, event)


def test_whatever_ends_an_aborted_attempt_cancels_it() -> None:
    assert set(ATTEMPT_TABLE[AttemptState.ABORTING].values()) == {AttemptState.CANCELLED}
