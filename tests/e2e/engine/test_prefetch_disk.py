"""A worker that was killed tells, before anything is asked of it, what its disk has, by the names
that routers know. What waits in the queue comes from there to memory, and its tokens equal those of
plain vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.config import Config, from_mapping
from common.engine.port import EngineRequest
from common.messages import KvCounts, Role
from common.net.wire import pack_ids
from common.prefix import prefix_hashes, split
from tests.e2e.engine.pair import ENGINE, GREEDY, Worker, until
from tests.e2e.engine.test_prefetch import BLOCKS, ask, counts, make_prompts
from tests.e2e.engine.test_store_disk import play
from tests.e2e.prompts import BLOCK
from tests.e2e.reference import plain_answers

pytestmark = pytest.mark.timeout(300)


def config(folder: Path) -> Config:
    kv = {"store": {"ram_mib": 128, "disk_mib": 64, "path": str(folder / "kv")}}
    return from_mapping(
        {
            "fleet": {"run_dir": str(folder)},
            "model": {"path": "baton-tiny", "dtype": "float32", "max_model_len": 4096},
            "decode": {"d0": {"engine": ENGINE, "kv": kv}},
            "router": {"mode": "replicated"},
        }
    )


def test_a_queue_comes_from_the_own_disk_after_kill_9(tmp_path: Path) -> None:
    prompts = make_prompts()
    plain = plain_answers(prompts, GREEDY.max_tokens)
    names = {
        name
        for prompt in prompts
        for name in split(prefix_hashes(pack_ids(prompt), BLOCK, None))[:BLOCKS]
    }
    wanted = len(prompts) * BLOCKS

    async def before(worker: Worker) -> None:
        for number, prompt in enumerate(prompts):
            await ask(worker, f"first{number}", prompt)
        await until(lambda: counts(worker).store_disk_written >= wanted, 30)

    async def after(worker: Worker) -> None:
        told: set[bytes] = set()

        def knows() -> bool:
            for delta in worker.engine.prefix_cache_delta(whole=False):
                told.update(split(delta.stored) if delta.medium == "disk" else ())
            return names <= told

        await until(knows, 30)
        assert counts(worker).store_held == 0, "nothing of it is in memory"
        for number, prompt in enumerate(prompts):
            request = EngineRequest(f"r{number}", 1, Role.DECODE, prompt, GREEDY)
            worker.engine.prefetch(request)
        await until(lambda: counts(worker).prefetched == wanted, 30)
        for number, prompt in enumerate(prompts):
            result = await ask(worker, f"r{number}", prompt)
            assert (result.tokens, result.cached) == (plain[number], BLOCKS * BLOCK)
        await until(lambda: counts(worker).prefetch_used == wanted, 30)
        shown: KvCounts = counts(worker)
        assert (shown.store_disk_read, shown.store_read) == (wanted, wanted), "each read once"
        assert (shown.prefetch_wasted, shown.prefetch_late, shown.store_damaged) == (0, 0, 0)
        assert shown.store_disk_bytes_per_s > 0

    play(config(tmp_path), before)
    play(config(tmp_path), after)
