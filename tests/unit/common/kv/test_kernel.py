"""The copy copies, the sum is the one that is described, and it sees every kind of damage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import BatonError, Code
from common.kv import kernel
from common.kv.kernel import KEYS, LINE_BYTES, ROW_BYTES, STEPS, Bytes, compiled, copy_pages, sum_of

PAGE = 3 * ROW_BYTES


def described(data: Bytes) -> bytes:
    """The sum as the kernel's theory of operation has it, by numpy."""
    rows = -(-data.nbytes // ROW_BYTES)
    padded = np.zeros(rows * ROW_BYTES, np.uint8)
    padded[: data.nbytes] = data
    lanes = padded.view(np.uint64).reshape(rows, 4, 8)
    turns = np.arange(rows, dtype=np.uint64)[:, None, None]
    masked = lanes ^ (np.array(KEYS, np.uint64) + turns * np.array(STEPS, np.uint64))
    products = (masked & np.uint64(0xFFFFFFFF)) * (masked >> np.uint64(32))
    own, others = products.sum(0, dtype=np.uint64), lanes.sum(0, dtype=np.uint64)
    total: bytes = (own + np.roll(others, 1, axis=0)).tobytes()
    return total


def noise(size: int, seed: int = 1) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def on_lines(size: int) -> Bytes:
    whole = np.zeros(size + LINE_BYTES, np.uint8)
    return whole[-whole.ctypes.data % LINE_BYTES :][:size]


@pytest.mark.parametrize("size", [0, 1, 64, ROW_BYTES - 1, ROW_BYTES, ROW_BYTES + 1, 100_003])
def test_the_sum_is_the_one_described(size: int) -> None:
    assert sum_of(noise(size)) == described(noise(size))


def test_the_sum_of_misaligned_data_is_the_same() -> None:
    data = noise(4096)
    for shift in (1, 7, 8, 33):
        moved = np.zeros(4096 + shift, np.uint8)
        moved[shift:] = data
        assert sum_of(moved[shift:]) == sum_of(data)


@pytest.mark.parametrize("through", [False, True])
def test_pages_arrive_where_they_should_and_nowhere_else(through: bool) -> None:
    source, target = noise(10 * PAGE), on_lines(10 * PAGE)
    target[:] = 255
    read, written = [7, 0, 3], [2, 9, 5]
    total = copy_pages(
        target,
        np.array(written, np.int64) * PAGE,
        source,
        np.array(read, np.int64) * PAGE,
        PAGE,
        through=through,
    )
    pages, copies = source.reshape(10, PAGE), target.reshape(10, PAGE)
    assert (copies[written] == pages[read]).all()
    assert (copies[[n for n in range(10) if n not in written]] == 255).all()
    assert total == sum_of(pages[read].reshape(-1)) == described(pages[read].reshape(-1))


def test_no_pages_are_nothing() -> None:
    none, memory = np.zeros(0, np.int64), on_lines(PAGE)
    assert copy_pages(memory, none, memory, none, PAGE, through=True) == sum_of(noise(0))


@given(
    data=st.binary(min_size=8, max_size=5 * ROW_BYTES),
    at=st.integers(0),
    damage=st.binary(min_size=1, max_size=8),
)
def test_any_damage_within_a_lane_is_seen(data: bytes, at: int, damage: bytes) -> None:
    lane = at % (len(data) // 8) * 8
    whole = np.frombuffer(data, np.uint8)
    damaged = whole.copy()
    damaged[lane : lane + len(damage)] = np.frombuffer(damage, np.uint8)
    assert (sum_of(damaged) == sum_of(whole)) == (damaged == whole).all()


@pytest.mark.parametrize("size", [8, 32, 64, ROW_BYTES, 2 * ROW_BYTES, PAGE])
def test_pieces_that_changed_places_are_seen(size: int) -> None:
    data = noise(8 * PAGE)
    for first, second in ((0, 1), (0, 5), (3, 7)):
        swapped = data.copy()
        a, b = (slice(n * size, (n + 1) * size) for n in (first, second))
        swapped[a], swapped[b] = data[b], data[a]
        assert sum_of(swapped) != sum_of(data)


@pytest.mark.parametrize("base", [noise(8 * PAGE), np.zeros(8 * PAGE, np.uint8)])
def test_pieces_lost_zeroed_repeated_or_shifted_are_seen(base: Bytes) -> None:
    base = base.copy()
    base[-1] |= 1
    seen = {sum_of(base)}
    for cut in (1, 8, 64, ROW_BYTES, PAGE):
        seen.add(sum_of(np.roll(base, cut)))
    for size in (64, ROW_BYTES, PAGE):
        zeroed = base.copy()
        zeroed[-size:] = 0
        seen.add(sum_of(zeroed))
        repeated = noise(8 * PAGE)
        repeated[size : 2 * size] = repeated[:size]
        seen.add(sum_of(repeated))
    assert len(seen) >= 1 + 5 + 3
    assert sum_of(base) == described(base)


def test_random_damage_leaves_no_two_sums_alike() -> None:
    """Some thousands of damaged copies of one page, each damaged in two to forty places."""
    random = np.random.default_rng(3)
    page = noise(PAGE)
    sums = {sum_of(page)}
    for _ in range(5_000):
        damaged = page.copy()
        places = random.choice(PAGE, random.integers(2, 41), replace=False)
        damaged[places] ^= random.integers(1, 256, len(places), dtype=np.uint8)
        sums.add(sum_of(damaged))
    assert len(sums) == 5_001


def test_without_sums_only_copies_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = compiled(summing=False)
    monkeypatch.setattr(kernel, "kernel", lambda: bare)
    source, target, at = noise(PAGE), on_lines(PAGE), np.zeros(1, np.int64)
    for through in (False, True):
        target[:] = 0
        total = copy_pages(target, at, source, at, PAGE, through=through)
        assert (target == source).all()
        assert total == bytes(ROW_BYTES)


def test_a_host_that_allows_no_code_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: str) -> None:
        raise OSError("not permitted")

    monkeypatch.setattr("common.kv.kernel_code._compiled", refused)
    with pytest.raises(BatonError, match="MemoryDenyWriteExecute") as refusal:
        compiled()
    assert refusal.value.code == Code.ENGINE_FAILED
