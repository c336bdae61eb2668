"""A state moves only as its table says."""

import enum

import pytest

from common.transitions import IllegalTransitionError, checked


class Light(enum.Enum):
    RED = "red"
    GREEN = "green"
    OUT = "out"


TABLE = {
    Light.RED: frozenset({Light.GREEN, Light.OUT}),
    Light.GREEN: frozenset({Light.RED}),
    Light.OUT: frozenset[Light](),
}


def test_what_the_table_has_is_returned() -> None:
    assert checked("north", TABLE, Light.RED, Light.GREEN) is Light.GREEN


@pytest.mark.parametrize("new", list(Light))
def test_nothing_leaves_a_terminal_state(new: Light) -> None:
    with pytest.raises(IllegalTransitionError, match=f"north cannot go from out to {new.value}"):
        checked("north", TABLE, Light.OUT, new)
