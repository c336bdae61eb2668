"""What is computed of a prompt, and what is told of it: what vLLM counted, save what a handoff
brought."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from common.blocks import Kept, KvGroup
from common.engine.port import EngineRequest
from common.engine.vllm.outputs import ids_to_compute, prompt_counts
from common.messages import Role, Sampling


def stats(prompt: int, local: int, external: int, created: int) -> Any:
    """vLLM's `PrefillStats`."""
    return SimpleNamespace(
        num_prompt_tokens=prompt,
        num_cached_tokens=local + external,
        num_external_cached_tokens=external,
        num_cache_creation_tokens=created,
    )


@pytest.mark.parametrize(
    ("prefill", "block", "expected"),
    [
        (None, 128, (0, 0, 0)),
        (stats(3_004, 0, 0, 2_944), 128, (0, 0, 2_944)),
        (stats(3_004, 2_944, 0, 0), 128, (2_944, 0, 2_944)),
        (stats(3_004, 128, 0, 2_816), 128, (128, 0, 2_944)),
        (stats(3_004, 0, 3_003, 0), 128, (3_003, 3_003, 2_944)),
        (stats(3_004, 128, 2_875, 0), 128, (3_003, 2_875, 2_944)),
        (stats(256, 0, 255, 0), 128, (255, 255, 256)),
        (stats(3_004, 0, 3_003, 0), 0, (3_003, 3_003, 0)),
        (stats(3_004, 0, 0, 0), 0, (0, 0, 0)),
    ],
)
def test_the_counts_of_a_prompt(prefill: Any, block: int, expected: tuple[int, int, int]) -> None:
    assert prompt_counts(prefill, block) == expected


@pytest.mark.parametrize(
    ("role", "groups", "ids", "computed"),
    [
        (Role.PREFILL, (KvGroup(16, Kept.WINDOW, 64),), [5, 6, 7], [5, 6]),
        (Role.PREFILL, (KvGroup(16, Kept.WINDOW, 64),), [5], [5]),
        (Role.DECODE, (KvGroup(16, Kept.WINDOW, 64),), [5, 6, 7], [5, 6, 7]),
        (Role.PREFILL, (), [5, 6, 7], [5, 6, 7]),
    ],
)
def test_p_leaves_the_last_token_to_d_where_a_part_is_kept(
    role: Role, groups: tuple[KvGroup, ...], ids: list[int], computed: list[int]
) -> None:
    request = EngineRequest("r", 0, role, ids, Sampling(max_tokens=1))
    assert ids_to_compute(request, groups) == computed
    assert request.prompt_ids == ids
