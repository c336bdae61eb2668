"""The names of a request's blocks are those by which routers know its prompt."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from common.engine.connector.block_names import BlockNames
from common.net.wire import pack_ids
from common.prefix import prefix_hashes, split

BLOCK = 16
IDS = list(range(300, 300 + 5 * BLOCK + 3))


def made(**more: Any) -> BlockNames:
    about = {"all_token_ids": IDS, "cache_salt": None, "lora_request": None, "mm_features": []}
    request: Any = SimpleNamespace(**(about | more))
    return BlockNames(request, BLOCK)


@pytest.mark.parametrize(("salt", "adapter"), [(None, ""), ("tenant", ""), (None, "a1")])
def test_they_are_what_a_router_is_told_of_the_prompt(salt: str | None, adapter: str) -> None:
    lora = SimpleNamespace(lora_name=adapter) if adapter else None
    wanted = split(prefix_hashes(pack_ids(IDS), BLOCK, salt, adapter=adapter))
    names = made(cache_salt=salt, lora_request=lora)
    assert names.of(0, 2) == wanted[:2]
    assert names.of(2, 2) == []
    assert names.of(4, 5) == wanted[4:], "those between are hashed, and not told"
    assert names.of(1, 3) == wanted[1:3], "a preempted request begins again"
    assert names.of(0, 5) == wanted


def test_each_block_is_hashed_once_as_the_request_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[int] = []

    def pack(ids: list[int]) -> bytes:
        packed.append(len(ids))
        return pack_ids(ids)

    monkeypatch.setattr("common.engine.connector.block_names.pack_ids", pack)
    names = made()
    for end in range(1, 6):
        names.of(end - 1, end)
    assert packed == [BLOCK] * 5


def test_a_prompt_with_images_has_none() -> None:
    assert made(mm_features=["image"]).of(0, 3) == []
