"""Tensor parallel ranks: each connects to its peer rank, and together they are one worker: the
tests that start something."""

from __future__ import annotations

import numpy as np

from common.errors import Code
from common.kv.handoff.parts import Rank
from common.kv.layout import HostMemory
from common.kv.peers.channel import WorkerIdentity
from common.kv.service import KvService
from tests.component.common.kv.service_peer import CONFIG, GEOMETRY, drained, filled, ticket


def test_rank_takes_from_rank() -> None:
    """Two ranks of P and of D in one process; each D rank gets its own P rank's bytes."""
    origins = [filled(seed) for seed in (1, 2)]
    bases = [np.zeros(GEOMETRY.end, np.uint8) for _ in origins]

    def ranks(name: str, memories: list[np.ndarray]) -> list[KvService]:
        return [
            KvService(
                WorkerIdentity(name, f"inc-{name}", "f", Rank(rank, 2)),
                CONFIG,
                HostMemory(base, GEOMETRY),
            )
            for rank, base in enumerate(memories)
        ]

    prefill, decode = ranks("p0", origins), ranks("d0", bases)
    handed = ticket("r", ",".join(service.start() for service in prefill))
    for p, d in zip(prefill, decode, strict=True):
        d.start()
        p.offer(handed, 3)
        d.fetch(handed, 0, [7, 8, 9])
        p.progress(("r", 0), [1, 2, 3], 3)
    for origin, base, service in zip(origins, bases, decode, strict=True):
        assert drained(service)[0].error == ""
        theirs, ours = HostMemory(origin, GEOMETRY), HostMemory(base, GEOMETRY)
        for source, target in ((1, 7), (2, 8), (3, 9)):
            assert (theirs.page(0, source) == ours.page(0, target)).all()
    lone = ticket("lone", handed.kv_address.split(",")[0])
    decode[1].fetch(lone, 0, [1])
    (end,) = drained(decode[1])
    assert end.error == Code.KV_TRANSFER_FAILED
    assert "this is rank 1" in end.message
    for service in (*prefill, *decode):
        service.stop()
