"""Flags become a fleet file that loads, and children in the right order."""

import dataclasses
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import config as configuration
from common.errors import ConfigError
from common.messages import Role
from common.net.endpoints import cell_addresses, control_addresses
from services.up.plan import (
    STOP_ORDER,
    Child,
    Flags,
    cell_flags,
    cell_names,
    children,
    fleet_toml,
    library_environment,
    shared_environment,
)

FLAGS = Flags(
    models=(("baton-tiny", ""),),
    prefill=2,
    decode=3,
    engine="sim",
    host="127.0.0.1",
    port=8000,
    health_port=9400,
    run_dir="/run/x",
    cores=8,
)


def test_the_written_fleet_file_loads_and_says_what_was_asked(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(fleet_toml(FLAGS))
    config = configuration.load(path, {})
    assert list(config.prefill) == ["p0", "p1"]
    assert list(config.decode) == ["d0", "d1", "d2"]
    assert config.decode["d2"].engine.kind == "sim"
    assert config.engine.threads == 1
    assert (config.gateway.port, config.health.port) == (8000, 9400)


def test_pools_are_written_and_workers_get_stores_for_them(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(fleet_toml(dataclasses.replace(FLAGS, pools=2)))
    config = configuration.load(path, {})
    assert list(config.pool) == ["s0", "s1"]
    assert {kv.store.ram_mib for kv in config.kv_planes.values()} == {256}
    path.write_text(fleet_toml(FLAGS))
    assert {kv.store.ram_mib for kv in configuration.load(path, {}).kv_planes.values()} == {0}


@given(st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=40))
def test_any_model_path_survives_the_file(path: str) -> None:
    raw = tomllib.loads(fleet_toml(dataclasses.replace(FLAGS, models=((path, ""),))))
    assert raw["model"]["path"] == path


def test_gateways_and_their_keys_are_written(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    flags = dataclasses.replace(
        FLAGS, host="0.0.0.0", gateways=3, keys_file="/etc/k.json", allow_anonymous=True
    )
    path.write_text(fleet_toml(flags))
    gateway = configuration.load(path, {}).gateway
    assert (gateway.processes, gateway.keys_file, gateway.allow_anonymous) == (
        3,
        "/etc/k.json",
        True,
    )
    fleet = children(["p0"], ["d0"], (), gateway.processes)
    assert [c.name for c in fleet if c.role is Role.GATEWAY] == ["g0", "g1", "g2"]


def test_router_comes_first_and_goes_last() -> None:
    fleet = children(["p0"], ["d0", "d1"], (), pools=("s0",))
    assert fleet[0].role is Role.ROUTER
    assert [c.name for c in fleet if c.is_worker] == ["p0", "d0", "d1"]
    assert set(STOP_ORDER) == {c.role for c in fleet}
    assert STOP_ORDER[0] is Role.GATEWAY
    assert STOP_ORDER[-1] is Role.ROUTER


def test_gpus_are_given_out_in_turn() -> None:
    workers = [c for c in children(["p0"], ["d0", "d1"], (3, 5)) if c.is_worker]
    assert [c.environment["CUDA_VISIBLE_DEVICES"] for c in workers] == ["3", "5", "3"]
    assert all("CUDA_VISIBLE_DEVICES" not in c.environment for c in children([], ["d0"], ()))


@pytest.mark.parametrize(("prefill", "decode"), [(["x"], ["x"]), ([], ["g0"]), (["r0"], ["h0"])])
def test_two_daemons_of_one_name_are_refused(prefill: list[str], decode: list[str]) -> None:
    with pytest.raises(ConfigError, match="has the same name; give it one of its own"):
        children(prefill, decode, ())


def test_workers_that_share_a_gpu_share_its_memory(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    for gpus, share in (((0,), 0.18), ((0, 1, 2), 0.45), ((0, 1, 2, 3, 4), None), ((), None)):
        path.write_text(fleet_toml(dataclasses.replace(FLAGS, gpus=gpus)))
        args = configuration.load(path, {}).decode["d0"].engine.args
        assert args.get("gpu_memory_utilization") == share


def test_a_mode_is_written_and_its_workers_with_it(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(fleet_toml(dataclasses.replace(FLAGS, mode="replicated", prefill=0)))
    config = configuration.load(path, {})
    assert (config.router.mode, len(config.prefill), len(config.decode)) == ("replicated", 0, 3)


def test_several_models_have_as_many_workers_each(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    flags = dataclasses.replace(FLAGS, models=(("a/chat", ""), ("b/x", "code")), prefill=1)
    path.write_text(fleet_toml(flags))
    config = configuration.load(path, {})
    assert {name: model.path for name, model in config.served.items()} == {
        "chat": "a/chat",
        "code": "b/x",
    }
    assert [worker.model for worker in config.prefill.values()] == ["chat", "code"]
    assert [worker.model for worker in config.decode.values()] == ["chat"] * 3 + ["code"] * 3
    assert list(config.decode) == ["d0", "d1", "d2", "d3", "d4", "d5"]


def test_workers_import_vllm_in_the_environment_that_most_have() -> None:
    one_thread, two_threads = {"engine": {"threads": 1}}, {"engine": {"threads": 2}}
    workers = {"d0": two_threads, "d1": one_thread, "d2": two_threads, "d3": two_threads}
    config = configuration.from_mapping({"decode": workers, "prefill": {"p0": one_thread}})
    fleet = children(["p0"], ["d0", "d1", "d2", "d3"], ())
    shared = shared_environment(config, fleet, {"PATH": "/bin"})
    assert shared is not None
    assert (shared["OMP_NUM_THREADS"], shared["PATH"]) == ("2", "/bin")
    alike = [c.name for c in fleet if library_environment(config, c, {"PATH": "/bin"}) == shared]
    assert alike == ["d0", "d2", "d3"]


def test_workers_with_gpus_or_simulated_engines_share_no_import() -> None:
    config = configuration.from_mapping({"decode": {"d0": {}}})
    assert shared_environment(config, children([], ["d0"], (0,)), {}) is None
    assert shared_environment(config, [Child(Role.GATEWAY, "g0")], {}) is None
    simulated = configuration.from_mapping({"decode": {"d0": {"engine": {"kind": "sim"}}}})
    assert shared_environment(simulated, children([], ["d0"], ()), {}) is None


def test_a_worker_that_the_file_lacks_is_named() -> None:
    config = configuration.from_mapping({"decode": {"d0": {}}})
    with pytest.raises(ConfigError, match="d9"):
        library_environment(config, Child(Role.DECODE, "d9"), {})


def test_cells_are_fleets_in_folders_behind_the_gateway_of_the_first(tmp_path: Path) -> None:
    flags = dataclasses.replace(FLAGS, cells=2, gateways=2, routers=2, run_dir=str(tmp_path))
    assert cell_names(flags) == ["c0", "c1"]
    config = configuration.parse(fleet_toml(flags))
    further = configuration.parse(fleet_toml(cell_flags(flags, "c1")))
    assert list(config.gateway.cells) == ["c0", "c1"]
    assert further.gateway.cells == {}
    assert control_addresses(further) == {
        name.partition("/")[2]: at for name, at in cell_addresses(config, "c1").items()
    }
    assert (config.health.port, further.health.port) == (9400, 9401)
    assert list(further.decode) == list(config.decode)


def test_the_hosts_cores_are_shared_by_all_cells() -> None:
    few = dataclasses.replace(FLAGS, prefill=1, decode=1)
    assert configuration.parse(fleet_toml(few)).engine.threads == 4
    assert configuration.parse(fleet_toml(dataclasses.replace(few, cells=2))).engine.threads == 2


def test_one_fleet_has_no_cells() -> None:
    assert cell_names(FLAGS) == []
    assert "cells" not in fleet_toml(FLAGS)


def test_children_of_a_further_cell_are_told_apart_and_take_the_next_gpus() -> None:
    fleet = children(["p0"], ["d0"], (3, 5, 7), 0, cell="c1", gpu_offset=2)
    assert [child.label for child in fleet] == ["c1/r0", "c1/h0", "c1/p0", "c1/d0"]
    gpus = [child.environment["CUDA_VISIBLE_DEVICES"] for child in fleet if child.is_worker]
    assert gpus == ["7", "3"]
    assert [child.label for child in children([], ["d0"], ())] == ["r0", "g0", "h0", "d0"]


def test_a_mixed_worker_is_counted_as_one_of_either_role() -> None:
    config = configuration.from_mapping({"decode": {"d0": {"role": "mixed"}, "d1": {}}})
    assert Child(Role.DECODE, "d0").parts(config) == (Role.PREFILL, Role.DECODE)
    assert Child(Role.DECODE, "d1").parts(config) == (Role.DECODE,)
    assert Child(Role.GATEWAY, "g0").parts(config) == (Role.GATEWAY,)
