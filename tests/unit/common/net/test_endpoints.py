"""Where sockets lie: within what a unix socket's name may have."""

from pathlib import Path

from common.config import Config, from_mapping
from common.net import endpoints


def config(run_dir: str) -> Config:
    return from_mapping({"fleet": {"run_dir": run_dir}})


def test_an_engines_sockets_lie_in_the_run_dir_of_its_worker() -> None:
    assert endpoints.engine_sockets(config("/run/baton"), "d0") == Path("/run/baton/d0.engine")


def test_an_engine_keeps_to_the_temporary_directory_where_its_names_do_not_fit() -> None:
    names = len("/d0.engine/") + endpoints.ENGINE_NAME_BYTES
    fits = "/" + "r" * (endpoints.IPC_PATH_BYTES_MAX - names - 1)
    assert endpoints.engine_sockets(config(fits), "d0") == Path(fits) / "d0.engine"
    assert endpoints.engine_sockets(config(fits + "r"), "d0") is None
