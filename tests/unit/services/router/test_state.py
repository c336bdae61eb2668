"""The transition tables: complete, with terminal states that nothing leaves."""

import itertools

import pytest

from services.router.state import (
    TERMINAL,
    TRY_TRANSITIONS,
    WORKER_TRANSITIONS,
    IllegalTransitionError,
    TryState,
    WorkerState,
    checked,
)


def test_every_state_has_a_row() -> None:
    assert set(TRY_TRANSITIONS) == set(TryState)
    assert set(WORKER_TRANSITIONS) == set(WorkerState)


def test_terminal_states_are_exactly_those_without_a_way_out() -> None:
    assert {state for state, after in TRY_TRANSITIONS.items() if not after} == TERMINAL


def test_every_try_state_is_reached_from_queued() -> None:
    seen = {TryState.QUEUED}
    while more := {new for old in seen for new in TRY_TRANSITIONS[old]} - seen:
        seen |= more
    assert seen == set(TryState)


@pytest.mark.parametrize(("old", "new"), list(itertools.product(TryState, TryState)))
def test_only_what_the_table_allows_is_allowed(old: TryState, new: TryState) -> None:
    if new in TRY_TRANSITIONS[old]:
        assert checked("r", TRY_TRANSITIONS, old, new) is new
    else:
        with pytest.raises(IllegalTransitionError, match=f"r cannot go from {old.value}"):
            checked("r", TRY_TRANSITIONS, old, new)


@pytest.mark.parametrize(("old", "new"), list(itertools.product(WorkerState, WorkerState)))
def test_the_same_for_workers(old: WorkerState, new: WorkerState) -> None:
    if new in WORKER_TRANSITIONS[old]:
        assert checked("w", WORKER_TRANSITIONS, old, new) is new
    else:
        with pytest.raises(IllegalTransitionError):
            checked("w", WORKER_TRANSITIONS, old, new)
