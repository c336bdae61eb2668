"""The copy copies, the sum is the one that is specified, and it sees every kind of damage.

Every test runs with the compiled loops and with the portable ones.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.kv.checksum import kernel
from common.kv.checksum.definition import LINE_BYTES, ROW_BYTES, Bytes, Loop
from common.kv.checksum.kernel import PORTABLE, Kernel, compiled, copy_pages, sum_of
from common.kv.checksum.portable import PIECE_ROWS
from tests.unit.common.kv.checksum import reference

PAGE = 3 * ROW_BYTES


@pytest.fixture(scope="module", autouse=True, params=["compiled", "portable"])
def loops(request: pytest.FixtureRequest) -> Iterator[None]:
    made = compiled() if request.param == "compiled" else PORTABLE
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "kernel", lambda: made)
        yield


def noise(size: int, seed: int = 1) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def on_lines(size: int) -> Bytes:
    whole = np.zeros(size + LINE_BYTES, np.uint8)
    return whole[-whole.ctypes.data % LINE_BYTES :][:size]


@pytest.mark.parametrize("size", [0, 1, 64, ROW_BYTES - 1, ROW_BYTES, ROW_BYTES + 1, 100_003])
def test_the_sum_is_the_one_specified(size: int) -> None:
    assert sum_of(noise(size)) == reference.checksum(noise(size).tobytes())


def test_the_sum_of_misaligned_data_is_the_same() -> None:
    data = noise(4096)
    for shift in (1, 7, 8, 33):
        moved = np.zeros(4096 + shift, np.uint8)
        moved[shift:] = data
        assert sum_of(moved[shift:]) == sum_of(data)


@pytest.mark.parametrize("nontemporal", [False, True])
def test_pages_arrive_where_they_should_and_nowhere_else(nontemporal: bool) -> None:
    source, target = noise(10 * PAGE), on_lines(10 * PAGE)
    target[:] = 255
    read, written = [7, 0, 3], [2, 9, 5]
    total = copy_pages(
        target,
        np.array(written, np.int64) * PAGE,
        source,
        np.array(read, np.int64) * PAGE,
        PAGE,
        nontemporal=nontemporal,
    )
    pages, copies = source.reshape(10, PAGE), target.reshape(10, PAGE)
    assert (copies[written] == pages[read]).all()
    assert (copies[[n for n in range(10) if n not in written]] == 255).all()
    assert (
        total
        == sum_of(pages[read].reshape(-1))
        == reference.checksum(pages[read].reshape(-1).tobytes())
    )


def test_no_pages_are_nothing() -> None:
    none, memory = np.zeros(0, np.int64), on_lines(PAGE)
    assert copy_pages(memory, none, memory, none, PAGE, nontemporal=True) == sum_of(noise(0))


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
    assert sum_of(base) == reference.checksum(base.tobytes())


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
    for nontemporal in (False, True):
        target[:] = 0
        total = copy_pages(target, at, source, at, PAGE, nontemporal=nontemporal)
        assert (target == source).all()
        assert total == bytes(ROW_BYTES)


@pytest.mark.parametrize(("rows", "pages"), [(2 * PIECE_ROWS + 3, 2), (PIECE_ROWS // 2 - 1, 5)])
def test_pages_longer_than_a_piece_and_pieces_of_several_pages(rows: int, pages: int) -> None:
    size = rows * ROW_BYTES
    source, target = noise(pages * size), on_lines(pages * size)
    places = np.arange(pages, dtype=np.int64) * size
    total = copy_pages(target, places[::-1].copy(), source, places, size, nontemporal=True)
    assert total == reference.checksum(source.tobytes())
    assert (target.reshape(pages, -1)[::-1] == source.reshape(pages, -1)).all()


def test_the_reading_loop_takes_several_pages_from_a_row_on_and_adds() -> None:
    data = noise(4 * PAGE)
    places = np.array([PAGE, 2 * PAGE, 3 * PAGE], np.int64)
    sums = np.frombuffer(sum_of(data[:PAGE]), np.uint64).copy()
    addresses = (0, 0, data.ctypes.data, places.ctypes.data)
    kernel.kernel().read(*addresses, 3, PAGE, PAGE // ROW_BYTES, sums.ctypes.data)
    assert sums.tobytes() == sum_of(data)


@pytest.mark.parametrize("nontemporal", [False, True])
def test_a_copy_bypasses_the_caches_if_it_was_asked_to(
    nontemporal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def noting(name: str) -> Loop:
        return lambda *_: ran.append(name)

    loops = Kernel(noting("read"), noting("copy"), noting("copy_nontemporal"))
    monkeypatch.setattr(kernel, "kernel", lambda: loops)
    memory, at = on_lines(PAGE), np.zeros(1, np.int64)
    copy_pages(memory, at, memory, at, PAGE, nontemporal=nontemporal)
    assert ran == ["copy_nontemporal" if nontemporal else "copy"]
