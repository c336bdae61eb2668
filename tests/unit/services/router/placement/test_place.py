"""Placement by the least loaded policy, as tables of snapshots and the choice expected."""

import pytest

from services.router.placement.place import PREFILL_AHEAD_TOKENS, place, with_headroom
from services.router.placement.policies import least_loaded
from services.router.placement.types import (
    CANDIDATES_MAX,
    Placement,
    PlacementContext,
    ResourceRequest,
    WaitFor,
    WorkerView,
)
from tests.unit.services.router.views import view

ASK = ResourceRequest(prompt_tokens=100, max_tokens=50)


def chosen(
    request: ResourceRequest, decodes: list[WorkerView], prefills: list[WorkerView]
) -> tuple[str, str]:
    choice = place(PlacementContext(request), decodes, prefills, least_loaded)
    assert isinstance(choice, Placement), choice
    return (choice.prefill.name if choice.prefill else "", choice.decode.name)


@pytest.mark.parametrize(
    ("decodes", "prefills", "expected"),
    [
        ([view("d1"), view("d0")], [view("p1"), view("p0")], ("p0", "d0")),
        ([view("d0", kv_tokens=16), view("d1")], [view("p0")], ("p0", "d1")),
        ([view("d0", requests=2), view("d1", requests=1)], [view("p0")], ("p0", "d1")),
        ([view("d0", kv_tokens=16), view("d1", requests=7)], [view("p0")], ("p0", "d1")),
        (
            [view("d0", kv_tokens=800), view("d1", kv_tokens=1200, kv_tokens_max=16_000)],
            [view("p0")],
            ("p0", "d1"),
        ),
        ([view("d0")], [view("p0", queued=10), view("p1", queued=9)], ("p1", "d0")),
        ([view("d0")], [view("p0", requests=1), view("p1")], ("p1", "d0")),
        ([view("d0", requests=8), view("d1", kv_tokens=896)], [view("p0")], ("p0", "d1")),
        ([view("d0", kv_tokens=1456), view("d1", requests=7)], [view("p0")], ("p0", "d1")),
        ([view("d0", max_model_len=149), view("d1", requests=5)], [view("p0")], ("p0", "d1")),
        ([view("d0")], [], ("", "d0")),
        ([view("d0")], [view("p0", fingerprint="other")], ("", "d0")),
        ([view("d0")], [view("p0", kv_tokens_max=96)], ("", "d0")),
        (
            [view("d0"), view("d1", fingerprint="g", kv_tokens=16)],
            [view("p0", requests=8), view("p1", fingerprint="g")],
            ("p1", "d1"),
        ),
    ],
)
def test_least_loaded_chooses(
    decodes: list[WorkerView], prefills: list[WorkerView], expected: tuple[str, str]
) -> None:
    assert chosen(ASK, decodes, prefills) == expected


@pytest.mark.parametrize(
    ("prefills", "expected"),
    [
        ([view("p0"), view("p1", requests=8)], ("p0", "d1")),
        ([view("p0"), view("p1")], ("p1", "d0")),
        ([view("p0", requests=8), view("p1", requests=8)], WaitFor.PREFILL),
    ],
)
def test_where_a_pair_is_barred_another_pair_that_has_room_is_found(
    prefills: list[WorkerView], expected: tuple[str, str] | WaitFor
) -> None:
    """`d0` is the better one, and all that may hand over to it is busy."""
    context = PlacementContext(ASK, excluded_pairs=frozenset({("p0|1", "d0|1")}))
    choice = place(context, [view("d0"), view("d1", requests=1)], prefills, least_loaded)
    if isinstance(choice, Placement):
        assert choice.prefill is not None
        assert (choice.prefill.name, choice.decode.name) == expected
    else:
        assert choice is expected


@pytest.mark.parametrize(
    ("decodes", "prefills", "expected"),
    [
        ([], [view("p0")], WaitFor.WORKER),
        ([view("d0", requests=8)], [view("p0")], WaitFor.SLOT),
        ([view("d0", kv_tokens=1456)], [view("p0")], WaitFor.KV),
        ([view("d0", kv_tokens=1456), view("d1", requests=8)], [view("p0")], WaitFor.KV),
        ([view("d0")], [view("p0", requests=8)], WaitFor.PREFILL),
        ([view("d0")], [view("p0", kv_tokens=1504)], WaitFor.PREFILL),
        ([view("d0")], [view("p0", queued=PREFILL_AHEAD_TOKENS - 99)], WaitFor.PREFILL),
    ],
)
def test_what_does_not_fit_now_waits_and_says_for_what(
    decodes: list[WorkerView], prefills: list[WorkerView], expected: WaitFor
) -> None:
    assert place(PlacementContext(ASK), decodes, prefills, least_loaded) is expected


def test_a_mixed_worker_takes_what_no_prefill_worker_has_room_for() -> None:
    decodes, full = [view("d0"), view("m0", mixed=True, requests=3)], [view("p0", requests=8)]
    assert chosen(ASK, decodes, [view("p0")]) == ("p0", "d0")
    assert chosen(ASK, decodes, full) == ("", "m0")
    other = view("m0", mixed=True, kv_tokens=1456)
    assert place(PlacementContext(ASK), [view("d0"), other], full, least_loaded) is WaitFor.PREFILL


def test_the_last_block_that_fits_is_used() -> None:
    exact = view("d0", kv_tokens=1600 - 160)
    assert exact.kv_need(150) == 160
    assert chosen(ASK, [exact], [view("p0")]) == ("p0", "d0")


def test_an_idle_prefill_worker_takes_a_prompt_of_any_length_it_can_hold() -> None:
    long = ResourceRequest(PREFILL_AHEAD_TOKENS * 2, 16)
    big = {"max_model_len": 1 << 20, "kv_tokens_max": 1 << 20}
    assert chosen(long, [view("d0", **big)], [view("p0", **big)]) == ("p0", "d0")
    busy = view("p0", queued=1, **big)
    assert (
        place(PlacementContext(long), [view("d0", **big)], [busy], least_loaded) is WaitFor.PREFILL
    )


def test_a_placement_explains_itself() -> None:
    decodes = [view(f"d{i:02}", kv_tokens=i * 16) for i in range(20)]
    choice = place(PlacementContext(ASK), decodes, [view("p0", queued=7)], least_loaded)
    assert isinstance(choice, Placement)
    assert choice.policy == "least_loaded"
    assert choice.sentence == (
        "p0 has 7 prompt tokens ahead, the fewest of 1 prefill workers with room; "
        "d00 has 0% of its KV promised and 0 requests, the least of 20 decode workers with room"
    )
    roles = [candidate.role for candidate in choice.candidates]
    assert roles == ["prefill"] + ["decode"] * CANDIDATES_MAX
    scores = [c.score for c in choice.candidates if c.role == "decode"]
    assert scores == sorted(scores)


def full(name: str, streams: int) -> WorkerView:
    """All of its requests have a token."""
    return view(name, requests=streams, decoding=streams)


@pytest.mark.parametrize(
    ("decodes", "prefills", "expected"),
    [
        ([view("d0")], [view("p0")], (["d0"], ["p0"])),
        ([full("d0", 6), full("d1", 7)], [view("p0")], (["d0"], ["p0"])),
        ([full("d0", 7)], [view("p0")], None),
        ([view("d0", requests=6, decoding=5), full("d1", 6)], [view("p0")], (["d1"], ["p0"])),
        ([view("d0")], [view("p0", queued=157), view("p1", queued=156)], (["d0"], ["p1"])),
        ([view("d0")], [view("p0", queued=157)], None),
        ([view("d0", queued=900)], [view("p0")], None),
        ([view("d0", queued=156)], [view("p0")], (["d0"], ["p0"])),
        ([view("d0", queued=157), view("d1", queued=156)], [], (["d1"], [])),
        ([view("d0", queued=157)], [], None),
    ],
)
def test_the_lowest_class_leaves_headroom(
    decodes: list[WorkerView],
    prefills: list[WorkerView],
    expected: tuple[list[str], list[str]] | None,
) -> None:
    """An eighth of eight slots is one, which is also how many may be without a first token; a
    prompt of 100 tokens joins 156 others."""
    found = with_headroom(100, decodes, prefills, reserve=0.125)
    names = None if found is None else tuple([one.name for one in views] for views in found)
    assert names == expected


@pytest.mark.parametrize(("reserve", "without_token"), [(0.0, 1), (0.125, 1), (0.25, 2)])
def test_no_more_of_the_lowest_class_begin_together_than_the_reserve_has_slots(
    reserve: float, without_token: int
) -> None:
    begin = [view("d0", requests=3 + number, decoding=3) for number in range(3)]
    found = [with_headroom(10, [decode], [], reserve) is not None for decode in begin]
    assert found == [number < without_token for number in range(3)]


def test_a_long_prompt_of_the_lowest_class_goes_where_none_is_computed() -> None:
    assert with_headroom(9_000, [view("d0")], [view("p0")], reserve=0.0) is not None
    assert with_headroom(9_000, [view("d0")], [view("p0", queued=1)], reserve=0.0) is None


def test_one_of_the_lowest_class_that_decode_workers_compute_waits_for_no_prefill_worker() -> None:
    """A prompt of one block is not handed over."""
    decodes, busy = (
        [view("d0", block_tokens=128), view("d1", block_tokens=64)],
        view("p0", queued=900),
    )
    found = with_headroom(100, decodes, [busy], reserve=0.0)
    assert found == ([decodes[0]], [])
