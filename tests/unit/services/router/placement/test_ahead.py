"""Which full decode workers a prompt may begin for, and how that is told."""

from __future__ import annotations

import pytest

from services.router.placement.ahead import Forecast, told, with_slots_ahead
from services.router.placement.place import rooms
from services.router.placement.types import Placement, ResourceRequest, WorkerView
from tests.unit.services.router.views import view

HALF = 0.5


def full(*, decoding: int = 8, requests: int = 8, mixed: bool = False) -> WorkerView:
    return view("d0", requests=requests, decoding=decoding, mixed=mixed)


def names(expected: Forecast, *views: WorkerView, most: float = HALF) -> list[str]:
    return [found.name for found in with_slots_ahead(views, expected, most)]


def test_as_many_streams_end_as_the_prompt_takes_of_their_stay() -> None:
    expected = Forecast(seconds=0.5, residence_s=2.0)
    assert expected.ending(view("d0", decoding=8)) == pytest.approx(2.0)
    assert expected.ending(view("d0", decoding=6)) == pytest.approx(1.5)
    assert Forecast(9.0, 2.0).ending(view("d0", decoding=8)) == 8.0, "and not more than there are"
    assert Forecast(0.5, 0.0).ending(view("d0", decoding=8)) == 0.0, "no stay was measured"


@pytest.mark.parametrize(
    ("decoding", "requests", "may"),
    [(8, 8, True), (8, 9, True), (8, 10, False), (4, 8, True), (4, 9, False), (3, 8, False)],
)
def test_no_more_begin_than_streams_will_end(decoding: int, requests: int, may: bool) -> None:
    """A quarter of a stay: two of eight streams."""
    worker = full(decoding=decoding, requests=requests)
    assert names(Forecast(0.5, 2.0), worker) == (["d0"] if may else [])


@pytest.mark.parametrize(("most", "requests", "may"), [
    (0.25, 9, True), (0.25, 10, False), (0.1, 8, False), (0.0, 8, False), (1.0, 15, True),
    (1.0, 16, False),
])  # fmt: skip
def test_no_more_begin_than_the_share_of_the_slots(most: float, requests: int, may: bool) -> None:
    worker = full(requests=requests)
    assert names(Forecast(99.0, 1.0), worker, most=most) == (["d0"] if may else [])


def test_those_that_may_have_so_many_more_slots_for_this_request() -> None:
    views = [view("d0", requests=8, decoding=8), view("d1", requests=8, decoding=1)]
    (found,) = with_slots_ahead(views, Forecast(0.5, 2.0), HALF)
    assert found == views[0]._replace(requests_max=10)


def test_a_worker_with_more_requests_than_slots_has_room_for_none() -> None:
    """What others lack for a move, or for the first in the queue, is not taken off."""
    request = ResourceRequest(16, 16)
    assert rooms(request, [view("d0", requests=10), view("d1", requests=5)]) == 3


def test_a_mixed_worker_computes_its_prompts_itself() -> None:
    assert names(Forecast(0.5, 2.0), full(mixed=True)) == []


def test_the_reason_is_told_with_its_terms() -> None:
    decode = view("d0", requests=9, decoding=6)
    chosen = Placement(decode, view("p0"), "cost", "p0 is idle", ())
    placed = told(chosen, Forecast(0.5, 2.0))
    assert placed.ahead
    assert placed.sentence == (
        "d0 has no free slot; of its 6 streams 1.5 should end in the 500 ms that the prompt takes, "
        "so it begins ahead of its slot; p0 is idle"
    )
