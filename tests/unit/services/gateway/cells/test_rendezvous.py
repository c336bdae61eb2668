"""A cell gets keys in proportion to its capacity; one that comes or goes moves its share only."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gateway.cells.rendezvous import order

NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=8)
CELLS = st.dictionaries(NAMES, st.floats(0.1, 100.0), min_size=2, max_size=8)
KEYS = st.binary(max_size=300)


@given(KEYS, CELLS)
def test_an_order_names_each_cell_once_and_never_changes(
    key: bytes, cells: dict[str, float]
) -> None:
    found = order(key, cells)
    assert sorted(found) == sorted(cells)
    assert order(key, dict(reversed(cells.items()))) == found


@given(KEYS, CELLS)
def test_a_cell_that_goes_leaves_the_order_of_the_others_alone(
    key: bytes, cells: dict[str, float]
) -> None:
    found = order(key, cells)
    for gone in cells:
        left = {name: capacity for name, capacity in cells.items() if name != gone}
        assert order(key, left) == tuple(name for name in found if name != gone)


@given(KEYS, CELLS, st.floats(1.01, 50.0))
def test_a_cell_that_grows_only_gains(key: bytes, cells: dict[str, float], factor: float) -> None:
    found = order(key, cells)
    for grown, capacity in cells.items():
        larger = order(key, cells | {grown: capacity * factor})
        assert larger.index(grown) <= found.index(grown)
        others = [name for name in larger if name != grown]
        assert others == [name for name in found if name != grown]


@settings(max_examples=20)
@given(st.dictionaries(NAMES, st.floats(0.5, 8.0), min_size=2, max_size=5), st.integers(0, 10**6))
def test_each_cell_gets_its_share_of_keys(cells: dict[str, float], salt: int) -> None:
    keys = 2_000
    first = Counter(order(f"{salt}/{n}".encode(), cells)[0] for n in range(keys))
    total = sum(cells.values())
    for name, capacity in cells.items():
        share = capacity / total
        deviation = (share * (1 - share) / keys) ** 0.5
        assert first[name] / keys == pytest.approx(share, abs=6 * deviation)


def test_the_keys_of_a_cell_that_goes_are_spread_over_all_others() -> None:
    cells = {"a": 1.0, "b": 1.0, "c": 2.0}
    second = Counter(found[1] for n in range(8_000) if (found := order(b"%d" % n, cells))[0] == "a")
    assert second["c"] / second["b"] == pytest.approx(2.0, rel=0.15)
