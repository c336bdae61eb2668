"""Several KV cache groups on real vLLM: a prefix that D has in one of them alone saves nothing, and
a long prompt moves no more of a window than it has."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from common.blocks import HandoverOrder, Kept, KvGroup, blocks_for
from common.net.wire import pack_ids
from common.prefix import prefix_hashes, split
from tests.e2e.engine.pair import Pair, Run, Worker, make_config, on_one_loop, open_pair, until
from tests.zoo.checkpoints import checkpoint, make_checkpoints
from tests.zoo.families import BLOCK, FAMILIES, WINDOW

pytestmark = pytest.mark.timeout(240)

CONTEXT = 8_200
LONG = 8_000
(GEMMA,) = (family for family in FAMILIES if family.key == "gemma2")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    make_checkpoints([GEMMA])
    overrides = {"max_position_embeddings": CONTEXT}
    engine = {"args": {"enforce_eager": True, "hf_overrides": overrides}, "kv_cache_mib": 256}
    folder = tmp_path_factory.mktemp("run")
    config = make_config(folder, engine, model=str(checkpoint(GEMMA)), max_model_len=CONTEXT)
    yield from on_one_loop(open_pair(config))


def text(tokens: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randint(10, 250) for _ in range(tokens)]


def groups_of(pair: Pair) -> tuple[KvGroup, ...]:
    """One of full layers and one of windows."""
    groups = pair.decode.engine.info.capacity.kv_groups
    assert sorted(group.kept for group in groups) == [Kept.ALL, Kept.WINDOW]
    return groups


def test_a_prefix_that_d_has_in_one_group_alone_is_moved_whole(run: Run) -> None:
    """Of a prompt that came from P, D has all blocks of the full layers and the last ones of the
    windows. A prompt that leaves it in the middle finds the former alone, which is no prefix; one
    that goes on after its end finds both."""
    shared, known = text(9 * BLOCK, 1), 6 * BLOCK
    inside = [*shared[:known], *text(200, 2)]
    after = [*shared, *text(200, 3)]

    async def work(pair: Pair) -> None:
        groups = groups_of(pair)
        moved = []
        for prompt in ([*shared, 77], inside, after):
            expected = (await pair.alone(prompt)).tokens
            result, end = await pair.hand_over(prompt, salt="one group")
            assert end.error == "", end.message
            assert result.tokens == expected
            moved.append(end.report.blocks)
        order = HandoverOrder(groups, len(inside) - 1)
        assert moved[1] == len(order), "a prefix in the full group alone is none"
        order = HandoverOrder(groups, len(after) - 1)
        cached = len(shared)
        assert moved[2] == sum(end > cached for end in order.ends) < len(order)

    run(work)


def told(worker: Worker, names: list[bytes]) -> dict[int, list[int]]:
    """For each KV cache group the numbers of the blocks, by their `names`, that it has."""
    found: dict[int, list[int]] = {}
    for delta in worker.engine.prefix_cache_delta(whole=True):
        known = set(names).intersection(split(delta.stored))
        found.setdefault(delta.group, []).extend(map(names.index, known))
    return {group: sorted(numbers) for group, numbers in found.items() if numbers}


def test_the_router_is_told_of_each_group_what_it_has(run: Run) -> None:
    """Of windows both have the end: of what P computed it kept no more, and D got no more."""
    prompt = text(5 * BLOCK + 7, 5)
    names = split(prefix_hashes(pack_ids(prompt), BLOCK, "told"))
    every = list(range(5))

    async def work(pair: Pair) -> None:
        groups = groups_of(pair)
        full = next(at for at, group in enumerate(groups) if group.kept is Kept.ALL)
        await pair.hand_over(prompt, salt="told")
        expected = {full: every, 1 - full: [4]}
        await until(lambda: told(pair.decode, names) == expected)
        await until(lambda: told(pair.prefill, names) == expected)

    run(work)


def test_of_a_long_prompt_a_windowed_layer_sends_its_window_and_a_block(run: Run) -> None:
    prompt = text(LONG, 4)

    async def work(pair: Pair) -> None:
        groups_of(pair)
        result, end = await pair.hand_over(prompt, salt="long")
        assert end.error == "", end.message
        assert result.tokens == (await pair.alone(prompt)).tokens
        full = blocks_for(LONG - 1, BLOCK)
        of_window = end.report.blocks - full
        assert 1 <= of_window <= blocks_for(WINDOW, BLOCK) + 1
        block_bytes = pair.decode.engine.info.capacity.kv_block_bytes
        assert end.report.raw_bytes == end.report.blocks * block_bytes

    run(work)
