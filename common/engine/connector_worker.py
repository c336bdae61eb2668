"""The connector's worker half: carries plans to the KV thread and its results back to vLLM.

Theory of operation: vLLM asserts that a request it is told about is known and, for sends, finished.
So an ended send is reported only once vLLM has listed the request as finished, an ended receive
once, in both sets if it failed (vLLM then computes the prompt itself). While blocks are pinned or
loading, vLLM steps every millisecond for news; a step that computes nothing waits here for a
handoff to end instead, a little longer, so that the polling costs a third.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
import torch

from common.engine.connector_meta import StepPlan, request_key
from common.errors import BatonError, Code
from common.kv.layout import Geometry, HostMemory
from common.kv.service import KvService

IDLE_WAIT_S = 0.003


class WorkerHalf:
    """Runs on the engine's thread."""

    def __init__(self, service: KvService) -> None:
        self._service = service
        self._offered: set[str] = set()
        self._sent: set[str] = set()
        self._finished: set[str] = set()
        self._fetching: set[str] = set()

    def preempted(self, plan: StepPlan) -> None:
        """Before blocks are overwritten: returns when none of theirs is being read."""
        for key in plan.withdrawn:
            self._service.withdraw(key)

    def load(self, plan: StepPlan) -> None:
        for fetch in plan.fetches:
            key = (fetch.ticket.request_id, fetch.ticket.attempt)
            if fetch.block_ids:
                self._fetching.add(request_key(key))
            self._service.fetch(fetch.ticket, fetch.first_block, fetch.block_ids)

    def computed(self, plan: StepPlan) -> None:
        """After the forward pass: the blocks of this step hold KV."""
        for progress in plan.progress:
            if progress.offer is not None:
                self._offered.add(request_key(progress.key))
                self._service.offer(progress.offer, progress.prompt_blocks)
            self._service.progress(progress.key, progress.block_ids, progress.computed)
        for key, reason in plan.releases:
            self._service.release(key, reason)

    def results(
        self, plan: StepPlan, finished: Iterable[str]
    ) -> tuple[set[str], set[str], set[str]]:
        """(finished_sending, finished_recving, failed_recving). Raises BatonError when the KV
        thread is dead: the engine must not go on without it."""
        if plan.idle and (self._offered or self._fetching):
            self._service.wait_end(IDLE_WAIT_S)
        self._finished |= self._offered.intersection(finished)
        received: set[str] = set()
        failed: set[str] = set()
        for end in self._service.drain():
            request_id = request_key((end.request_id, end.attempt))
            if end.side == "send" and request_id in self._offered:
                self._sent.add(request_id)
            elif end.side == "receive" and request_id in self._fetching:
                self._fetching.remove(request_id)
                received.add(request_id)
                if end.error:
                    failed.add(request_id)
        sent = self._sent & self._finished
        self._sent -= sent
        self._finished -= sent
        self._offered -= sent
        return sent, received, failed


def host_memory(kv_caches: dict[str, torch.Tensor], blocks: int) -> HostMemory:
    """vLLM's KV cache as bytes. Raises BatonError(CONFIG_INVALID) for layouts that are not paged
    K and V of equal layers in one host allocation."""
    tensors = list(kv_caches.values())
    first = tensors[0]
    storage = first.untyped_storage()
    page_bytes = first[0].numel() * first.element_size()
    block_stride = first.stride(0) * first.element_size()
    plain = all(
        tensor.device.type == "cpu"
        and tensor.shape == first.shape
        and tensor.stride() == first.stride()
        and tensor.untyped_storage().data_ptr() == storage.data_ptr()
        for tensor in tensors
    )
    starts = sorted(tensor.data_ptr() - storage.data_ptr() for tensor in tensors)
    strides = {b - a for a, b in itertools.pairwise(starts)} or {page_bytes * blocks}
    if not plain or first.shape[0] != blocks or len(strides) != 1:
        raise BatonError(
            Code.CONFIG_INVALID,
            "this KV cache layout cannot be handed over: supported are models with one kind of "
            f"full attention and host memory, found {len(tensors)} layers of {tuple(first.shape)} "
            f"on {first.device.type}, distances {sorted(strides)[:4]}",
        )
    geometry = Geometry(
        layers=len(tensors),
        blocks=blocks,
        page_bytes=page_bytes,
        layer_stride=strides.pop(),
        block_stride=block_stride,
        offset=starts[0],
    )
    flat = torch.empty(0, dtype=torch.uint8).set_(storage)
    base: np.ndarray[tuple[int], np.dtype[np.uint8]] = flat.numpy()
    return HostMemory(base, geometry)
