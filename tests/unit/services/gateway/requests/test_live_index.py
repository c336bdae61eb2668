"""Where each live request is, and how many of a key are there."""

from services.gateway.requests.live_index import LiveIndex


def test_requests_are_counted_by_cell_and_key() -> None:
    index = LiveIndex()
    index.add("r0", "c0", "k")
    index.add("r1", "c0", "k")
    index.add("r2", "c1", "k")
    index.add("r3", "c1", "")
    assert len(index) == 4
    assert index.cells["r2"] == "c1"
    assert (index.of_key("c0", "k"), index.of_key("c1", "k"), index.of_key("c2", "k")) == (2, 1, 0)
    assert index.of_key("c1", "") == 0
    index.check_invariants()


def test_nothing_is_left_of_what_is_over() -> None:
    index = LiveIndex()
    for request_id in ("r0", "r1"):
        index.add(request_id, "c0", "k")
    index.remove("r0", "k")
    assert index.of_key("c0", "k") == 1
    index.remove("r1", "k")
    assert (len(index), index.of_key("c0", "k"), index._of_key) == (0, 0, {})
    index.check_invariants()
