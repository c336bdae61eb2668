"""What the workers of a model have of a prompt, in their engines' caches and in their stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from common.blocks import other_groups, usable_blocks
from services.router.placement.memory import PlacementMemory
from services.router.placement.types import Placement, ResourceRequest, StoredPrefix
from services.router.records.worker import Worker


def known_prefixes(
    memory: PlacementMemory, workers: Mapping[str, Worker], hashes: Sequence[bytes]
) -> dict[str, int]:
    """Tokens of the prompt with these hashes that each worker can use; those with none are absent.
    Each KV cache group must have what the token after them needs: a window has the last blocks of
    an earlier prompt, which are of no use to one that leaves it in the middle."""
    found = {}
    for name, blocks in memory.prefixes.match(hashes).items():
        capacity = workers[name].capacity
        others = [
            (group, memory.prefixes_of(at).has(name, hashes[:blocks]))
            for at, group in other_groups(capacity.kv_groups)
        ]
        usable = usable_blocks(blocks, others) if others else blocks
        if usable:
            found[name] = usable * capacity.block_tokens
    return found


def remember_prefix(
    memory: PlacementMemory,
    workers: Mapping[str, Worker],
    request: ResourceRequest,
    placement: Placement,
) -> None:
    """Both workers will hold the prompt's KV; the next prompt with the same prefix is placed by
    that. A decode worker that gets it from another gets what the prompt's last token needs."""
    for view in (placement.decode, placement.prefill):
        if view is None or not request.prefix:
            continue
        capacity = workers[view.identity].capacity
        memory.prefixes.add(view.identity, request.prefix, capacity.kv_blocks)
        gets = placement.prefill is not None and view is placement.decode
        for at, group in other_groups(capacity.kv_groups):
            first = group.blocks(request.prompt_tokens - 1).start if gets else 0
            memory.prefixes_of(at).add(view.identity, request.prefix[first:], capacity.kv_blocks)


def stored_prefixes(
    memory: PlacementMemory, workers: Mapping[str, Worker], hashes: Sequence[bytes]
) -> tuple[StoredPrefix, ...]:
    """The stores that have the beginning of this prompt, in memory first, and with what only their
    disk has where that is more. A prefill worker's own store counts as its cache, as far as it is
    in memory; a decode worker's does not, because its handoff goes first."""
    found = []
    in_memory, on_disk = memory.stored.match(hashes), memory.on_disk.match(hashes)
    for identity in in_memory | on_disk:
        worker = workers[identity]
        if worker.away:
            continue
        one, address = worker.capacity.block_tokens, worker.kv_address
        named = worker.name, identity, worker.incarnation, worker.fingerprint, address
        held, below = in_memory.get(identity, 0) * one, on_disk.get(identity, 0) * one
        if held:
            found.append(StoredPrefix(*named, held))
        if below > held:
            counts = worker.kv_counts
            rate = float(counts.store_disk_bytes_per_s) if counts is not None else 0.0
            found.append(StoredPrefix(*named, below, below - held, rate))
    return tuple(found)
