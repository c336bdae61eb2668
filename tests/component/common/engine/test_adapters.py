"""Which adapters an engine has in memory: loaded when needed, let go when unused, never mixed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from common.engine.adapters import BATCH_SLOTS, Adapter, AdapterTable, resident_max
from common.errors import BatonError, Code, ConfigError
from common.model.adapters import name_of_adapter
from tests.rigs.adapters import make_adapter


class Loader:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.fault: BatonError | None = None
        self.meanwhile: Callable[[], object] = lambda: None

    async def load(self, adapter: Adapter) -> None:
        if self.fault is not None:
            raise self.fault
        self.meanwhile()
        self.said.append(f"+{name_of_adapter(adapter.id)}")

    async def unload(self, adapter: Adapter) -> None:
        self.said.append(f"-{name_of_adapter(adapter.id)}")


class Rig:
    def __init__(self, root: Path, slots: int) -> None:
        self.root = root
        self.loader = Loader()
        ticks = iter(range(10_000))
        self.table = AdapterTable(
            self.loader, root, rank_max=16, slots=slots, clock=lambda: next(ticks) / 10
        )

    async def add(self, name: str, seed: int = 1) -> str:
        folder = self.root / name
        if not folder.exists():
            make_adapter(folder, seed, layers=1)
        await self.table.add(name, str(folder))
        self.table.check_invariants()
        return next(s.id for s in self.table.statuses() if s.id.startswith(f"{name}@"))

    async def use(self, adapter: str, key: str) -> None:
        await self.table.use(adapter, key)
        self.table.check_invariants()

    def said(self) -> str:
        told, self.loader.said = " ".join(self.loader.said), []
        return told

    def resident(self) -> set[str]:
        return {name_of_adapter(s.id) for s in self.table.statuses() if s.resident}


Play = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, slots=2)


def test_the_one_used_longest_ago_leaves_and_is_loaded_again_when_needed(rig: Rig) -> None:
    async def play() -> None:
        ids = [await rig.add(name) for name in "abc"]
        assert (rig.said(), rig.resident()) == ("+a +b -a +c", {"b", "c"})
        await rig.use(ids[1], "r1")
        rig.table.release("r1")
        await rig.use(ids[0], "r2")
        assert (rig.said(), rig.resident()) == ("-c +a", {"a", "b"})
        await rig.use(ids[0], "r3")
        assert rig.said() == ""
        assert all(s.load_ms == pytest.approx(100) for s in rig.table.statuses())

    asyncio.run(play())


def test_what_runs_is_never_let_go(rig: Rig) -> None:
    async def play() -> None:
        ids = [await rig.add(name) for name in "abc"]
        for key, adapter in enumerate(ids):
            await rig.use(adapter, str(key))
        assert rig.resident() == {"a", "b", "c"}, "one more than there are slots"
        rig.said()
        await rig.table.remove("a")
        assert rig.said() == ""
        with pytest.raises(BatonError) as refused:
            await rig.use(ids[0], "late")
        assert refused.value.code is Code.ADAPTER_NOT_HELD
        for key in range(3):
            rig.table.release(str(key))
        await rig.add("d")
        assert rig.said() == "-a -b +d"

    asyncio.run(play())


def test_files_that_change_are_never_served_under_the_old_id(rig: Rig) -> None:
    async def play() -> None:
        ids = [await rig.add(name) for name in "abc"]
        make_adapter(rig.root / "a", 99, layers=1)
        rig.said()
        with pytest.raises(BatonError, match="its files changed"):
            await rig.use(ids[0], "r1")
        assert (rig.said(), rig.resident()) == ("", {"b", "c"}), "nothing is let go for it"
        (fault,) = [s for s in rig.table.statuses() if s.error]
        assert (fault.id, fault.path) == ("a", str(rig.root / "a"))
        again = await rig.add("a")
        assert again != ids[0]
        assert not [s for s in rig.table.statuses() if s.error]

    asyncio.run(play())


def test_files_that_change_while_they_are_loaded_are_not_served(rig: Rig) -> None:
    async def play() -> None:
        rig.loader.meanwhile = lambda: make_adapter(rig.root / "a", 99, layers=1)
        with pytest.raises(BatonError, match="its files changed"):
            await rig.add("a")
        assert (rig.said(), rig.resident()) == ("+a -a", set())

    asyncio.run(play())


def test_what_the_engine_refuses_leaves_the_others_alone(rig: Rig) -> None:
    async def play() -> None:
        first = await rig.add("a")
        rig.loader.fault = ConfigError("adapters.b.path", "vLLM cannot load it: no")
        with pytest.raises(BatonError, match="vLLM cannot load it"):
            await rig.add("b")
        await rig.use(first, "r1")
        assert [s.id for s in rig.table.statuses() if s.error] == ["b"]
        await rig.table.remove("b")
        assert not [s for s in rig.table.statuses() if s.error]
        rig.loader.fault = BatonError(Code.ENGINE_FAILED, "it is dead")
        with pytest.raises(BatonError, match="it is dead"):
            await rig.add("c")
        assert not [s for s in rig.table.statuses() if s.error], "that is not the adapter's fault"

    asyncio.run(play())


def test_a_name_has_one_set_of_files_at_a_time(rig: Rig) -> None:
    async def play() -> None:
        first = await rig.add("a")
        rig.said()
        assert await rig.add("a") == first
        assert rig.said() == "", "the same files again are no work"
        make_adapter(rig.root / "other", 2, layers=1)
        with pytest.raises(BatonError, match="unload it first"):
            await rig.table.add("a", str(rig.root / "other"))
        await rig.use(first, "r1")
        with pytest.raises(BatonError, match="there is no adapter 'zzz'"):
            await rig.table.remove("zzz")

    asyncio.run(play())


@pytest.mark.parametrize(
    ("arguments", "in_file", "stay"),
    [
        ({}, 0, BATCH_SLOTS),
        ({}, 16, 16),
        ({"max_loras": 6}, 2, 6),
        ({"max_loras": 2, "max_cpu_loras": 3}, 16, 3),
        ({"max_loras": 4, "max_cpu_loras": 1}, 16, 4),
    ],
)
def test_all_of_the_file_stay_in_memory_unless_it_says_otherwise(
    arguments: dict[str, Any], in_file: int, stay: int
) -> None:
    assert resident_max(arguments, in_file) == stay
