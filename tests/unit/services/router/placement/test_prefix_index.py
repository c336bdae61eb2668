"""The index of prefixes against a plain model of it, and its bounds."""

import random

import pytest

from services.router.placement.prefix_index import PrefixIndex


def names(*numbers: int) -> list[bytes]:
    return [number.to_bytes(8) for number in numbers]


def test_how_much_of_a_prompt_each_worker_has() -> None:
    index = PrefixIndex()
    index.add("a", names(1, 2, 3), 10)
    index.add("b", names(1, 2), 10)
    index.add("c", names(9, 2, 3), 10)
    assert index.match(names(1, 2, 3, 4)) == {"a": 3, "b": 2}
    assert index.match(names(9)) == {"c": 1}
    assert index.match(names(4, 1)) == {}
    assert index.match([]) == {}


def test_nothing_behind_a_gap_counts() -> None:
    index = PrefixIndex()
    index.add("a", names(1, 2, 3), 10)
    index.add("b", names(1, 2, 3), 10)
    index.remove("a", names(2))
    assert index.match(names(1, 2, 3)) == {"a": 1, "b": 3}
    index.remove("b", names(1, 77))
    index.remove("nobody", names(1))
    assert index.match(names(1, 2, 3)) == {"a": 1}


def test_of_what_is_too_much_the_oldest_goes_and_of_one_prompt_the_tail() -> None:
    index = PrefixIndex()
    index.add("a", names(1, 2, 3), 4)
    index.add("a", names(5, 6), 4)
    assert index.match(names(1, 2, 3)) == {"a": 2}
    assert index.match(names(5, 6)) == {"a": 2}
    index.add("a", names(1), 4)
    index.add("a", names(7), 4)
    assert index.match(names(1)) == {"a": 1}
    assert index.match(names(1, 2)) == {"a": 1}
    index.add("b", names(*range(100, 120)), 4)
    assert index.match(names(*range(100, 120))) == {"b": 4}
    index.check_invariants()


def test_the_bound_over_all_workers() -> None:
    index = PrefixIndex(hashes_max=5)
    index.add("a", names(1, 2, 3), 10)
    index.add("b", names(1, 2, 3), 10)
    assert len(index) == 5
    index.add("c", names(1), 10)
    assert index.held("c") == 0
    index.add("a", names(8, 9), 10)
    assert index.match(names(8, 9)) == {"a": 2}
    index.check_invariants()


def test_a_gone_worker_s_place_is_taken_without_its_prefixes() -> None:
    index = PrefixIndex()
    index.add("a", names(1, 2), 10)
    index.add("b", names(1), 10)
    index.clear("a")
    index.clear("a")
    index.add("c", names(5), 10)
    assert index.match(names(1, 2)) == {"b": 1}
    assert index.match(names(5)) == {"c": 1}
    index.check_invariants()


@pytest.mark.parametrize("seed", range(20))
def test_any_sequence_agrees_with_a_plain_model(seed: int) -> None:
    dice = random.Random(seed)
    index, model = PrefixIndex(), {f"w{i}": set[int]() for i in range(5)}
    for _ in range(300):
        worker = dice.choice(list(model))
        some = [dice.randrange(12) for _ in range(dice.randrange(5))]
        what = dice.choice(["add", "add", "remove", "clear", "match"])
        if what == "add":
            index.add(worker, names(*some), 1000)
            model[worker] |= set(some)
        elif what == "remove":
            index.remove(worker, names(*some))
            model[worker] -= set(some)
        elif what == "clear" and dice.random() < 0.2:
            index.clear(worker)
            model[worker].clear()
        expected = {}
        for name, held in model.items():
            depth = 0
            while depth < len(some) and some[depth] in held:
                depth += 1
            if depth:
                expected[name] = depth
        assert index.match(names(*some)) == expected
        index.check_invariants()
