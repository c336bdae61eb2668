"""Parts of prompts, the names of their blocks, and what a cache keeps of them."""

from __future__ import annotations

from itertools import accumulate

import pytest

from common.prefix import split
from loadtest.bench.request_specs import Piece, RequestSpec, from_rows
from loadtest.capacity.prefix_cache import PrefixCache
from loadtest.capacity.prompt_parts import Part, block_hashes, chained
from loadtest.capacity.workload import Arrival, of_spec, recorded, resized
from loadtest.traces.rows import Row


def blocks(*parts: tuple[int, int], size: int = 16) -> list[bytes]:
    return split(block_hashes([Part(*part) for part in parts], size))


def named(text: str) -> list[bytes]:
    return [letter.encode() for letter in text]


def test_a_block_is_named_by_what_its_last_token_lies_in() -> None:
    """20 + 20 tokens are two whole blocks, and only the first lies before the second part."""
    one, other = blocks((1, 20), (2, 20)), blocks((1, 20), (3, 20))
    assert len(one) == len(other) == 2
    assert one[0] == other[0]
    assert one[1] != other[1]


def test_blocks_of_one_part_have_names_of_their_own() -> None:
    found = blocks((1, 64))
    assert len(set(found)) == len(found) == 4
    assert blocks((1, 32)) == found[:2]
    assert blocks((1, 15)) == []
    assert blocks() == []


def test_parts_that_end_with_a_block_and_small_ones_leave_no_gap() -> None:
    assert len(blocks((1, 16), (2, 16))) == 2
    assert len(blocks((1, 5), (2, 5), (3, 5), (4, 17))) == 2
    assert blocks((1, 5), (2, 11))[0] == blocks((9, 5), (2, 11))[0]


def test_a_piece_is_the_same_part_only_behind_the_same_text() -> None:
    def ids(*pieces: tuple[str, int]) -> list[int]:
        return [part.id for part in chained(Piece(*piece) for piece in pieces)]

    whole = ids(("a", 10), ("b", 10))
    assert ids(("a", 10), ("b", 10), ("c", 1))[:2] == whole
    assert ids(("b", 10))[0] not in whole
    assert ids(("a", 11), ("b", 10))[1] != whole[1]
    assert ids(("a", 10), ("b", 11))[1] != whole[1]
    assert ids(("x", 10), ("b", 10))[1] != whole[1]
    assert all(0 <= block_id < 1 << 64 for block_id in whole)


ROWS = [
    Row(0.0, 1_100, 10, (0, 1, 2)),
    Row(1.0, 1_500, 10, (0, 1, 3)),
    Row(2.0, 700, 10),
    Row(3.0, 700, 10),
]


@pytest.mark.parametrize("scale", [1.0, 0.3, 0.1, 0.001])
def test_a_trace_keeps_its_prefixes_at_any_scale(scale: float) -> None:
    first, second, third, fourth = recorded(ROWS, scale=scale, speed=2.0)
    specs = list(from_rows(ROWS, scale=scale, speed=2.0))
    for arrival, ask in zip((first, second, third, fourth), specs, strict=True):
        assert sum(part.tokens for part in arrival.parts) == arrival.prompt == ask.prompt
        assert (arrival.at, arrival.output, arrival.max_tokens) == (ask.at, ask.output, ask.output)
    if scale > 0.01:
        assert first.parts[:2] == second.parts[:2]
        assert first.parts[2].id != second.parts[2].id
    assert third.parts[0].id != fourth.parts[0].id


def test_what_the_bench_would_send_shares_what_its_pieces_share() -> None:
    shared, own = Piece("chat0", 64), [Piece("own0", 40), Piece("own1", 40)]
    one, other = (of_spec(RequestSpec("chat", (shared, piece), 9, 1.5)) for piece in own)
    assert (one.at, one.prompt, one.output, one.max_tokens) == (1.5, 104, 9, 9)
    pair = [split(block_hashes(arrival.parts, 16)) for arrival in (one, other)]
    assert [a == b for a, b in zip(*pair, strict=True)] == [True] * 4 + [False] * 2


@pytest.mark.parametrize("times", [0.01, 0.3, 0.5, 1.0, 1.5])
def test_a_resized_prompt_begins_as_its_siblings_do(times: float) -> None:
    lead = (Part(1, 51), Part(2, 3), Part(3, 77))
    prompts = [(*lead, Part(4, 20)), (*lead, Part(5, 333)), lead]
    arrivals = [
        Arrival(0.0, sum(p.tokens for p in prompt), 1, 1, parts=prompt) for prompt in prompts
    ]
    made = [resized(arrival, times) for arrival in arrivals]
    for before, after in zip(arrivals, made, strict=True):
        assert after.prompt == max(1, round(before.prompt * times))
        assert sum(part.tokens for part in after.parts) in {after.prompt, 0}
        assert all(part.tokens > 0 for part in after.parts)
    ends = [dict(zip((p.id for p in a.parts), accumulate(p.tokens for p in a.parts), strict=True))
            for a in made]  # fmt: skip
    assert all(ends[0].get(part) == ends[1].get(part) == ends[2].get(part) for part in (1, 2, 3))


def test_an_arrival_of_unknown_parts_stays_so() -> None:
    assert resized(Arrival(0.0, 100, 1, 1), 0.5) == Arrival(0.0, 50, 1, 1)


def test_only_leading_blocks_count() -> None:
    cache = PrefixCache(10)
    cache.add(named("abcd"))
    assert cache.match(named("abcd")) == 4
    assert cache.match(named("abxd")) == 2
    assert cache.match(named("xbcd")) == 0
    assert cache.match([]) == 0


def test_what_was_used_longest_ago_goes_first_and_of_a_prompt_its_tail() -> None:
    cache = PrefixCache(4)
    cache.add(named("ab"))
    cache.add(named("cd"))
    cache.add(named("ab"))
    cache.add(named("e"))
    assert [cache.match(named(seed)) for seed in ("ab", "cd", "e")] == [2, 1, 1]
    cache.add(named("fg"))
    assert [cache.match(named(seed)) for seed in ("ab", "cd", "e", "fg")] == [1, 0, 1, 2]


def test_a_cache_is_bounded_and_keeps_the_head_of_a_larger_prompt() -> None:
    cache = PrefixCache(3)
    cache.add(named("abcdef"))
    assert (len(cache), cache.match(named("abcdef"))) == (3, 3)
    cache.add(named("xyz"))
    assert (len(cache), cache.match(named("abcdef"))) == (3, 0)
    none = PrefixCache(0)
    none.add(named("abc"))
    assert (len(none), none.match(named("abc"))) == (0, 0)
