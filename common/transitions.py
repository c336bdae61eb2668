"""State machines as data: a table says which state may follow which, and one function checks it.

A table maps each state of an enum to the states that may follow it; a terminal state maps to an
empty set. The tables of the router are in `services/router/records/states.py`, of the gateway in
`services/gateway/requests/request.py`, of the KV handoff in `common/kv/handoff/protocol.py`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeVar

from common.errors import BatonError, Code

S = TypeVar("S", bound=enum.Enum)


class IllegalTransitionError(BatonError):
    """A defect of the program, which no peer can cause. The process must not continue."""

    def __init__(self, row: object, old: enum.Enum, new: enum.Enum) -> None:
        super().__init__(Code.INTERNAL, f"{row} cannot go from {old.value} to {new.value}")


def checked(row: object, table: Mapping[S, frozenset[S]], old: S, new: S) -> S:
    """Returns `new`, if the table allows it. The error's sentence names `row` as what changes its
    state. Raises IllegalTransitionError."""
    if new not in table[old]:
        raise IllegalTransitionError(row, old, new)
    return new
