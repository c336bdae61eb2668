"""The compose files and the image, as far as they can be judged without an engine: what each daemon
is started with, how it is closed up, and by the schema and the client where they are here."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from common import config as configuration
from common.config import Config

COMPOSE = Path(__file__).parents[3] / "compose"
FILES = {"compose.yaml": "fleet.toml", "compose.gpu.yaml": "fleet.gpu.toml"}
SERVICES = [(name, service) for name in FILES for service in ("router", "gateway", "health")]
SERVICES += [(name, service) for name in FILES for service in ("prefill-p0", "decode-d0")]
SERVICES += [("compose.yaml", name) for name in ("prefill-p1", "decode-d1", "pool-s0")]


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((COMPOSE / name).read_text())
    return found


def fleet(name: str) -> Config:
    return configuration.load(COMPOSE / FILES[name], {})


@pytest.mark.parametrize("name", FILES)
def test_the_services_are_the_daemons_of_the_fleet_file(name: str) -> None:
    config = fleet(name)
    workers = {f"prefill-{each}" for each in config.prefill}
    workers |= {f"decode-{each}" for each in config.decode}
    workers |= {f"pool-{each}" for each in config.pool}
    assert set(read(name)["services"]) == {"router", "gateway", "health"} | workers


@pytest.mark.parametrize(("name", "service"), SERVICES)
def test_each_container_is_closed_up_and_drains(name: str, service: str) -> None:
    made = read(name)["services"][service]
    assert made["read_only"] is True
    assert made["cap_drop"] == ["ALL"]
    assert made["security_opt"] == ["no-new-privileges:true"]
    assert made["user"] == "10001:10001"
    assert "privileged" not in made
    assert made["pids_limit"] > 0
    grace = int(made["stop_grace_period"].removesuffix("s"))
    assert grace > fleet(name).fleet.drain_ms / 1000 + 10
    assert made["healthcheck"]["test"][0] == "CMD"
    assert made["restart"].startswith("on-failure")


@pytest.mark.parametrize("name", FILES)
def test_who_drains_first_depends_on_the_others(name: str) -> None:
    """A compose client stops in the reverse order of `depends_on`."""
    services = read(name)["services"]
    for worker in services.keys() - {"router", "gateway", "health"}:
        assert "router" in services[worker]["depends_on"]
        assert worker in services["gateway"]["depends_on"]
        inactive = "profiles" in services[worker]
        assert services["gateway"]["depends_on"][worker].get("required", True) is not inactive


def test_only_the_host_itself_reaches_what_is_published() -> None:
    for service in read("compose.yaml")["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_each_worker_binds_its_own_address_on_a_network_without_a_way_out() -> None:
    made, config = read("compose.yaml"), fleet("compose.yaml")
    assert made["networks"]["kv"]["internal"] is True
    workers = {path.replace(".", "-"): kv for path, kv in config.kv_planes.items()}
    for service, kv in workers.items():
        networks = made["services"][service]["networks"]
        assert networks == {"kv": {"ipv4_address": kv.host}}
    addresses = [kv.host for kv in workers.values()]
    assert len(set(addresses)) == len(addresses)


def test_gpu_workers_have_a_gpu_each_and_what_rdma_needs() -> None:
    services = read("compose.gpu.yaml")["services"]
    gpus = []
    for name in ("prefill-p0", "decode-d0"):
        worker = services[name]
        (device,) = worker["deploy"]["resources"]["reservations"]["devices"]
        assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
        gpus += device["device_ids"]
        assert worker["ulimits"]["memlock"] == {"soft": -1, "hard": -1}
        assert (worker["network_mode"], worker["ipc"]) == ("host", "host")
        assert worker["devices"] == ["/dev/infiniband:/dev/infiniband"]
    assert sorted(gpus) == ["0", "1"]


def test_the_image_is_pinned_runs_as_nobody_special_and_names_no_registry() -> None:
    text = (COMPOSE / "Containerfile").read_text()
    base = re.findall(r"^ARG BASE=(\S+)$", text, re.MULTILINE)
    assert len(base) == 1
    assert re.fullmatch(r"python:3\.11\.\d+-slim-\w+", base[0])
    stages = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert stages == ["${BASE}", "${BASE}"]
    assert re.findall(r"^USER (\S+)$", text, re.MULTILINE) == ["10001:10001"]
    assert 'ENTRYPOINT ["baton"]' in text


def test_what_the_image_copies_is_in_the_tree_and_let_through() -> None:
    root = COMPOSE.parent
    allowed = {
        line[1:] for line in (root / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    text = (COMPOSE / "Containerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE):
        for source in shlex.split(line)[:-1]:
            assert (root / source).exists(), source
            assert source.split("/")[0] in allowed, source


@pytest.mark.skipif(shutil.which("check-jsonschema") is None, reason="run `make compose-check`")
def test_the_schema_of_the_compose_specification_holds() -> None:
    files = [str(COMPOSE / name) for name in FILES]
    check = ["check-jsonschema", "--builtin-schema", "vendor.compose-spec", *files]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
