"""How many blocks a pool holds, and which layouts it takes."""

from __future__ import annotations

import msgspec
import pytest

from common.config import KvConfig, StoreConfig
from common.messages import Layout
from services.pool.store import slots_of

CONFIG = KvConfig(store=StoreConfig(ram_mib=1))
LAYOUT = Layout(
    worker="p0",
    fingerprint="f",
    fingerprint_parts={},
    block_tokens=16,
    block_bytes=4096,
    layers=4,
)


def with_sizes(**sizes: int) -> Layout:
    return msgspec.structs.replace(LAYOUT, **sizes)


def test_as_many_blocks_as_fit_in_its_memory() -> None:
    assert slots_of(CONFIG, LAYOUT) == 256


@pytest.mark.parametrize(
    ("layout", "says"),
    [
        (with_sizes(layers=0), "p0 has no layout that a pool can hold"),
        (with_sizes(layers=3), "p0 has no layout that a pool can hold"),
        (with_sizes(block_tokens=0), "p0 has no layout that a pool can hold"),
        (with_sizes(block_bytes=2 << 20), "ram_mib holds none"),
    ],
)
def test_a_layout_that_cannot_be_held_is_refused_with_a_sentence(layout: Layout, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        slots_of(CONFIG, layout)
