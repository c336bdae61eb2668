"""What is asked and when: prefixes that are shared, lengths that hold, seeds that repeat."""

from __future__ import annotations

from itertools import islice

import pytest

from loadtest.bench import arrivals, request_specs
from loadtest.bench.prompts import Maker, Measure
from loadtest.bench.request_specs import Piece, RequestSpec
from loadtest.traces.rows import Row

MAKER = Maker("model")


def common(left: list[int], right: list[int]) -> int:
    pairs = zip(left, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_equal_block_ids_are_equal_prefixes_and_different_ones_are_not(scale: float) -> None:
    rows = [Row(0, 1_300, 5, (0, 1, 2)), Row(4, 1_100, 5, (0, 1, 9)), Row(8, 600, 5, (7, 1))]
    one, two, three = (MAKER.token_ids(a) for a in request_specs.from_rows(rows, scale=scale))
    assert [len(one), len(two), len(three)] == [round(n * scale) for n in (1_300, 1_100, 600)]
    assert common(one, two) == pytest.approx(1_024 * scale, abs=2)
    assert common(one, three) < 3


def test_a_trace_keeps_its_gaps_at_any_speed() -> None:
    rows = [Row(0, 10, 5), Row(3, 10, 5), Row(4.5, 10, 5)]
    assert [ask.at for ask in request_specs.from_rows(rows, speed=10)] == [0, 0.3, 0.45]


def test_rows_without_blocks_share_nothing() -> None:
    one, two = (
        MAKER.token_ids(a) for a in request_specs.from_rows([Row(0, 900, 5), Row(1, 900, 5)])
    )
    assert common(one, two) < 5


@pytest.mark.parametrize("name", [*request_specs.MIXES, request_specs.LONG])
def test_a_mix_repeats_with_its_seed_and_only_with_it(name: str) -> None:
    first = list(islice(request_specs.synthetic(name, 1), 50))
    assert first == list(islice(request_specs.synthetic(name, 1), 50))
    assert first != list(islice(request_specs.synthetic(name, 2), 50))
    assert all(ask.prompt > 0 and ask.output > 0 for ask in first)


def test_rag_shares_documents_and_long_has_one_giant() -> None:
    documents = [ask.pieces[0].seed for ask in islice(request_specs.synthetic("rag", 1), 100)]
    assert 3 < len(set(documents)) < 25
    prompts = [ask.prompt for ask in islice(request_specs.synthetic("long", 1), 100)]
    assert prompts[request_specs.LONG_AT] == request_specs.LONG_TOKENS
    assert sum(prompt > 10_000 for prompt in prompts) == 1


def test_scaling_scales_shared_pieces_alike() -> None:
    whole = list(islice(request_specs.synthetic("rag", 1), 200))
    small = list(islice(request_specs.synthetic("rag", 1, 0.1), 200))
    assert sum(a.prompt for a in small) == pytest.approx(
        sum(a.prompt for a in whole) / 10, rel=0.05
    )
    lengths: dict[str, set[int]] = {}
    for ask in small:
        lengths.setdefault(ask.pieces[0].seed, set()).add(ask.pieces[0].tokens)
    assert all(len(seen) == 1 for seen in lengths.values())


def test_arrivals_have_their_rate() -> None:
    assert list(islice(arrivals.constant(4), 3)) == [0, 0.25, 0.5]
    assert list(islice(arrivals.burst(4, 2), 5)) == [0, 0, 0.5, 0.5, 1]
    times = list(islice(arrivals.poisson(50, 1), 5_000))
    assert times[-1] == pytest.approx(100, rel=0.05)
    assert times == sorted(times)


def test_a_load_ends_before_its_seconds_do() -> None:
    load = arrivals.until(arrivals.timed(request_specs.fixed(5, 5, 1), arrivals.constant(10)), 1.0)
    assert len(list(load)) == 10


def test_text_has_the_length_that_the_tokenizer_makes_of_it() -> None:
    ask = RequestSpec("chat", (Piece("system", 100), Piece("own1", 50)), 5)
    maker = Maker("model", api="chat", measure=Measure(chars_per_token=4.0, overhead=10))
    assert len(maker.text(ask)) == (150 - 10) * 4
    other = ask._replace(pieces=(ask.pieces[0], Piece("own2", 50)))
    assert maker.text(ask)[:400] == maker.text(other)[:400]
    assert maker.text(ask) != maker.text(other)
