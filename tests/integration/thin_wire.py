"""Handoffs from a P that compresses where it pays (`auto`) to a D that allows it, over TCP. Prints
of each, as JSON: `compression`, `choice` (P's reason, if a new one), `seconds` and `error`.

    python -m tests.integration.thin_wire HANDOFFS
"""

from __future__ import annotations

import json
import sys
import time

import msgspec
import numpy as np

from tests.component.common.kv.service_peer import (
    BLOCKS,
    GEOMETRY,
    WIRE_ONLY,
    drained,
    make_service,
    remote,
    ticket,
)

AUTO = msgspec.structs.replace(WIRE_ONLY, compression="auto")


def main(handoffs: int) -> None:
    blocks = list(range(BLOCKS))
    with remote("p0", config=AUTO) as prefill:
        service, _ = make_service("d0", np.zeros(GEOMETRY.end, np.uint8), AUTO)
        for number in range(handoffs):
            handed = ticket(f"r{number}", prefill.address)
            prefill.offer_all(handed, blocks)
            start = time.perf_counter()
            service.fetch(handed, 0, blocks)
            (received,) = drained(service)
            seconds = time.perf_counter() - start
            (sent,) = prefill.ends()
            said = {"compression": received.report.compression, "choice": sent.choice}
            print(json.dumps(said | {"seconds": seconds, "error": received.error}), flush=True)
        service.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]))
