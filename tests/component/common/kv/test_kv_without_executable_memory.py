"""A worker that may not make memory executable hands KV over to one that may, and from it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from common.kv.layout import HostMemory
from tests.component.common.kv.service_peer import (
    GEOMETRY,
    LAYERS,
    drained,
    filled,
    make_service,
    remote,
    ticket,
)
from tests.unit.common.kv.checksum import reference

SOURCE, TARGET = [5, 6, 7, 20, 21, 3], [60, 1, 2, 33, 34, 9]
CHILD = """
import numpy as np
from tests.component.common.kv.no_executable_memory import forbid_executable_memory
forbid_executable_memory()
from common.kv.checksum import kernel
data = np.frombuffer(bytes(range(256)) * 1000, np.uint8)
print(kernel.sum_of(data).hex(), kernel.kernel() is kernel.PORTABLE)
"""


def test_such_a_process_computes_the_same_sums() -> None:
    """Without the check before compiling, it would die of its first sum."""
    printed = subprocess.check_output([sys.executable, "-c", CHILD], text=True)
    sums, portable = printed.split()[-2:]
    assert sums == reference.checksum(bytes(range(256)) * 1000).hex()
    assert portable == "True"


def test_it_hands_kv_over_to_a_worker_with_compiled_loops() -> None:
    base = filled(2)
    service, _ = make_service("d0", base)
    with remote("p0", fault="no-executable-memory") as prefill:
        assert prefill.call("portable")
        handed = ticket("r", prefill.address)
        service.fetch(handed, 0, TARGET)
        prefill.offer_all(handed, SOURCE)
        (got,) = drained(service)
    service.stop()
    assert (got.error, got.report.retries) == ("", 0)
    assert_moved(base)


def test_it_takes_kv_over_from_a_worker_with_compiled_loops() -> None:
    service, address = make_service("p0", filled(1))
    with remote("d0", seed=2, fault="no-executable-memory") as decode:
        assert decode.call("portable")
        handed = ticket("r", address)
        decode.call("fetch", handed, 0, TARGET)
        service.offer(handed, len(SOURCE))
        service.progress(("r", 0), SOURCE, len(SOURCE))
        (got,) = decode.ends()
        base = decode.call("memory")
    service.stop()
    assert (got.error, got.report.retries) == ("", 0)
    assert isinstance(base, np.ndarray)
    assert_moved(base)


def assert_moved(base: np.ndarray) -> None:
    held, origin = HostMemory(base, GEOMETRY), HostMemory(filled(1), GEOMETRY)
    for layer in range(LAYERS):
        for theirs, ours in zip(SOURCE, TARGET, strict=True):
            assert (held.page(layer, ours) == origin.page(layer, theirs)).all()
