"""The LoRA adapters that a worker's engine has, and which of them are in its memory.

Theory of operation: an adapter is known from the moment that its files were checked and it was
loaded once, so that what an engine cannot serve shows before a request needs it. A request for one
that is not resident loads it first. What is used longest ago and by no request leaves the memory
when more than `slots` are resident; what runs is never let go, so that the engine never has to read
files in the middle of a step. The digest of the files is compared before and after each load: an
adapter whose files changed is not served under its old id, and KV is never mixed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from common.errors import BatonError, Code, ConfigError
from common.messages import ADAPTERS_MAX, AdapterStatus
from common.model.adapters import adapter_id, checked_adapter, digest_of, name_of_adapter

BATCH_SLOTS = 4
"""Different adapters in one batch, unless `max_loras` says otherwise."""


class AdapterLoader(Protocol):
    """The engine's side. Both raise BatonError; an engine that is dead says ENGINE_FAILED."""

    async def load(self, adapter: Adapter) -> None: ...

    async def unload(self, adapter: Adapter) -> None: ...


@dataclass(slots=True, eq=False)
class Adapter:
    """One adapter of known files."""

    id: str
    path: str
    #: Its number in the engine, from 1; never used again.
    number: int
    #: Milliseconds that it took to load last; 0: it never was loaded.
    load_ms: float = 0.0
    #: Keys of the requests that run with it.
    users: set[str] = field(default_factory=set)


class AdapterTable:
    """`base`: the model's folder. `rank_max`: what the engine takes. `slots`: how many stay
    resident though no request runs with them."""

    def __init__(
        self,
        loader: AdapterLoader,
        base: Path,
        *,
        rank_max: int,
        slots: int,
        clock: Callable[[], float],
    ) -> None:
        self._loader = loader
        self._base = base
        self._rank_max = rank_max
        self._slots = slots
        self._clock = clock
        self._known: dict[str, Adapter] = {}
        #: Those in the engine's memory, by id, the one used longest ago first.
        self._resident: OrderedDict[str, Adapter] = OrderedDict()
        self._of_request: dict[str, Adapter] = {}
        #: Why an adapter of this name cannot be served, with its path.
        self._faults: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._numbers = 0
        self._lock = asyncio.Lock()

    def statuses(self) -> tuple[AdapterStatus, ...]:
        known = [
            AdapterStatus(
                id=adapter.id,
                path=adapter.path,
                resident=adapter.id in self._resident,
                load_ms=adapter.load_ms,
            )
            for adapter in self._known.values()
        ]
        faults = [
            AdapterStatus(id=name, path=path, error=error)
            for name, (path, error) in self._faults.items()
        ]
        return tuple([*known, *faults][:ADAPTERS_MAX])

    async def add(self, name: str, path: str) -> None:
        """From now on requests may name it. Idempotent. Raises BatonError, which is remembered for
        `statuses`; what was there before goes on."""
        async with self._lock:
            try:
                await self._add(name, path)
            except BatonError as error:
                if error.code is not Code.ENGINE_FAILED:
                    self._remember(name, path, error.message)
                raise
            self._faults.pop(name, None)

    async def remove(self, name: str) -> None:
        """No new request may name it. It leaves the memory when the last one ends that runs with
        it, at the latest when its place is needed. Raises BatonError(NOT_FOUND)."""
        async with self._lock:
            adapter = self._named(name)
            fault = self._faults.pop(name, None)
            if adapter is None:
                if fault is None:
                    raise BatonError(Code.NOT_FOUND, f"there is no adapter {name!r}")
                return
            del self._known[adapter.id]
            await self._let_go_unused(self._slots)

    async def use(self, adapter: str, key: str) -> Adapter:
        """The request `key` runs with it until `release`. Raises BatonError(ADAPTER_NOT_HELD)."""
        async with self._lock:
            found = self._known.get(adapter)
            if found is None:
                raise not_held(adapter)
            try:
                if adapter not in self._resident:
                    await self._load(found)
            except BatonError as error:
                if error.code is Code.ENGINE_FAILED:
                    raise
                del self._known[adapter]
                self._remember(name_of_adapter(adapter), found.path, error.message)
                raise not_held(adapter, error.message) from error
            self._resident.move_to_end(adapter)
            found.users.add(key)
            self._of_request[key] = found
            return found

    def release(self, key: str) -> None:
        """The request is over. Idempotent."""
        adapter = self._of_request.pop(key, None)
        if adapter is not None:
            adapter.users.discard(key)

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        for key, adapter in self._of_request.items():
            assert key in adapter.users
            assert adapter.id in self._resident, f"{adapter.id} runs and is not in memory"
        unused = [one for one in self._resident.values() if not one.users]
        assert len(unused) <= max(self._slots, 0) or len(self._resident) <= self._slots
        assert len(self._known) <= ADAPTERS_MAX
        assert len(self._faults) <= ADAPTERS_MAX

    async def _add(self, name: str, path: str) -> None:
        found = await asyncio.to_thread(checked_adapter, name, path, self._base, self._rank_max)
        before = self._named(name)
        if before is not None and before.id == found:
            return
        if before is not None:
            sentence = f"it is loaded with other files, from {before.path}; unload it first"
            raise ConfigError(f"adapters.{name}.path", sentence)
        if len(self._known) >= ADAPTERS_MAX:
            raise ConfigError(f"adapters.{name}", f"{ADAPTERS_MAX} adapters are already loaded")
        self._numbers += 1
        adapter = self._resident.get(found) or Adapter(found, path, self._numbers)
        if found not in self._resident:
            await self._load(adapter)
        self._known[found] = adapter

    async def _load(self, adapter: Adapter) -> None:
        """Raises BatonError; nothing of it is in the engine then."""
        began = self._clock()
        await self._check_unchanged(adapter)
        await self._let_go_unused(self._slots - 1)
        await self._loader.load(adapter)
        try:
            await self._check_unchanged(adapter)
        except BatonError:
            await self._loader.unload(adapter)
            raise
        adapter.load_ms = (self._clock() - began) * 1000
        self._resident[adapter.id] = adapter

    async def _check_unchanged(self, adapter: Adapter) -> None:
        name = name_of_adapter(adapter.id)
        try:
            digest = await asyncio.to_thread(digest_of, adapter.path)
        except OSError as error:
            sentence = f"its files cannot be read any more: {error.strerror or error}"
            raise ConfigError(f"adapters.{name}.path", sentence) from error
        if adapter_id(name, digest) != adapter.id:
            sentence = "its files changed since they were checked; unload it, and load it again"
            raise ConfigError(f"adapters.{name}.path", sentence)

    async def _let_go_unused(self, keep: int) -> None:
        """Until so many are left, or all that are left run; what was removed goes in any case."""
        for adapter in list(self._resident.values()):
            over = len(self._resident) > keep or adapter.id not in self._known
            if over and not adapter.users:
                await self._loader.unload(adapter)
                del self._resident[adapter.id]

    def _named(self, name: str) -> Adapter | None:
        return next((one for one in self._known.values() if name_of_adapter(one.id) == name), None)

    def _remember(self, name: str, path: str, error: str) -> None:
        self._faults[name] = (path, error[:512])
        while len(self._faults) > ADAPTERS_MAX:
            self._faults.popitem(last=False)


def resident_max(arguments: Mapping[str, Any], in_file: int) -> int:
    """How many adapters stay in an engine's memory though no request runs with them. `arguments`:
    those of the engine. `in_file`: the adapters of its model in the fleet file, all of which stay
    unless `max_cpu_loras` says otherwise. A batch's are in memory in any case."""
    in_batch = int(arguments.get("max_loras", BATCH_SLOTS))
    return max(in_batch, int(arguments.get("max_cpu_loras", in_file)))


def not_held(adapter: str, why: str = "") -> BatonError:
    """Of a request for an adapter that this worker cannot serve; another one may."""
    name = name_of_adapter(adapter) or adapter
    sentence = f"this worker does not have the adapter {name!r}"
    return BatonError(Code.ADAPTER_NOT_HELD, f"{sentence}: {why}" if why else sentence)
