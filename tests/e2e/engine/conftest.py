"""One pair of engines for all tests that do not kill it: starting one costs seconds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.engine.pair import Run, make_config, on_one_loop, open_pair


@pytest.fixture(autouse=True, scope="session")
def nothing_bad_to_inherit() -> None:
    """A fork may inherit UCX's lock held, now and then, and vLLM does not start where llvmlite was
    loaded; better no engine test starts than that. See common.kv.transport.ucx and
    common.kv.checksum.codegen. Nor does an engine start whose parent has computed in several
    threads: a fork has the books of OpenMP's threads and not the threads."""
    import torch

    torch.set_num_threads(1)
    loaded = sorted(name for name in sys.modules if name.startswith(("ucxx", "llvmlite")))
    assert not loaded, f"{loaded[0]} was loaded before engines are forked"


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pytest's own has the test's name in it: too long for a run_dir that has room for vLLM's
    sockets, which would then lie in the host's temporary directory for good."""
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="package")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs a coroutine function on the pair; all on one loop."""
    folder = tmp_path_factory.mktemp("run")
    pair = open_pair(make_config(folder))
    for name in ("p0", "d0"):
        assert any((folder / f"{name}.engine").iterdir()), f"{name} has its sockets elsewhere"
    yield from on_one_loop(pair)
