"""What placement remembers between requests. Only the rules change it."""

from __future__ import annotations

import msgspec

from common.blocks import group_of_prefixes
from common.messages import PREFIX_DELTA_HASHES_MAX, Capacity, PrefixDelta
from common.prefix import split
from services.router.placement.pair_breaker import PairBreakers
from services.router.placement.policies.registry import POLICIES
from services.router.placement.prefix_index import PrefixIndex
from services.router.placement.types import PlacementOptions, Policy, ResourceRequest

SIZES = 32
PROBE_EVERY = 64
IN_ENGINE, IN_STORE, ON_DISK = "engine", "store", "disk"
"""As in `PrefixDelta.medium`."""


class PlacementMemory:
    """The policy in force, the prefix index, the pair breakers, and the governor's last decision
    for each prompt size."""

    def __init__(self, policy: Policy, options: PlacementOptions) -> None:
        #: An operator may replace both while the router runs.
        self.policy = policy
        self.options = options
        #: What engines have, of the KV cache group of each worker that tells best
        #: (`common.blocks.group_of_prefixes`).
        self.prefixes = PrefixIndex()
        self._prefixes_of_others: dict[int, PrefixIndex] = {}
        #: What stores have, in memory and on disk, out of which other workers may pull.
        self.stored = PrefixIndex()
        self.on_disk = PrefixIndex()
        self.pairs = PairBreakers()
        #: Number of the last placement.
        self.serial = 0
        self._was_remote: list[bool | None] = [None] * SIZES
        self._local_in_row = [0] * SIZES

    @property
    def knows_stores(self) -> bool:
        """Whether any store has told what it has."""
        return len(self.stored) > 0 or len(self.on_disk) > 0

    @property
    def all_local(self) -> bool:
        """Whether every prompt is computed by its decode worker."""
        return self.options.mode != "disaggregated" or self.options.remote_prefill == "never"

    def set_options(self, policy: str, remote_prefill: str) -> None:
        """An empty argument leaves its value as it is."""
        if policy:
            self.policy = POLICIES[policy]
        if remote_prefill:
            self.options = msgspec.convert((self.options.mode, remote_prefill), PlacementOptions)
            self._was_remote = [None] * SIZES

    def prefixes_of(self, group: int) -> PrefixIndex:
        """Those of another KV cache group of workers that have several, by its place."""
        return self._prefixes_of_others.setdefault(group, PrefixIndex())

    def forget_prefixes(self, identity: str) -> None:
        """The worker lost its whole cache, or is gone. Idempotent."""
        for index in (self.prefixes, *self._prefixes_of_others.values()):
            index.clear(identity)

    def forget_stored(self, identity: str) -> None:
        """The worker is gone, and its store with it. Idempotent."""
        self.stored.clear(identity)
        self.on_disk.clear(identity)

    def learn_prefixes(self, identity: str, capacity: Capacity, message: PrefixDelta) -> None:
        """This worker reports what it gained and lost. A medium that is not known is ignored."""
        index, blocks_max = self.prefixes, capacity.kv_blocks
        if message.medium == IN_STORE:
            index, blocks_max = self.stored, capacity.pull_blocks
        elif message.medium == ON_DISK:
            index, blocks_max = self.on_disk, capacity.disk_blocks
        elif message.medium != IN_ENGINE:
            return
        if index is not self.prefixes:
            if message.cleared:
                index.clear(identity)
        else:
            if message.cleared:
                self.forget_prefixes(identity)
            if message.group != group_of_prefixes(capacity.kv_groups):
                if message.group >= len(capacity.kv_groups):
                    return
                index = self.prefixes_of(message.group)
        index.remove(identity, split(message.removed)[:PREFIX_DELTA_HASHES_MAX])
        stored = split(message.stored)[:PREFIX_DELTA_HASHES_MAX]
        if stored:
            index.add(identity, stored, blocks_max)

    def next_serial(self) -> int:
        self.serial += 1
        return self.serial

    def was_remote(self, request: ResourceRequest) -> bool | None:
        """The governor's last free decision for a prompt of this size; None = there was none."""
        return self._was_remote[_size(request)]

    def probe_due(self, request: ResourceRequest) -> bool:
        """Whether a remote prefill of this size must be measured again."""
        return self._local_in_row[_size(request)] >= PROBE_EVERY

    def record_decision(self, request: ResourceRequest, *, remote: bool, compared: bool) -> None:
        """A prompt was placed. `compared`: the governor chose between two possible sides."""
        size = _size(request)
        if compared:
            self._was_remote[size] = remote
            self._local_in_row[size] += not remote
        if remote:
            self._local_in_row[size] = 0

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        stores = self.stored, self.on_disk
        for index in (self.prefixes, *self._prefixes_of_others.values(), *stores):
            index.check_invariants()
        self.pairs.check_invariants()


def _size(request: ResourceRequest) -> int:
    """The row of this prompt length; rows are powers of two."""
    return min(SIZES - 1, request.prompt_tokens.bit_length())
