"""The compose files and the image, as far as they can be judged without an engine: what each
daemon: the tests that start something."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.unit.packaging.test_compose import COMPOSE, FILES, read

CLIENTS = (["docker", "compose"], ["docker-compose"], ["podman-compose"])


@pytest.mark.parametrize("name", FILES)
def test_the_compose_client_reads_it(name: str, tmp_path: Path) -> None:
    client = next((each for each in CLIENTS if _works(each)), None)
    if client is None:
        pytest.skip("no compose client here: `apt install podman`, then `make compose-check`")
    done = subprocess.run(
        [*client, "-f", str(COMPOSE / name), "config"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], "MODEL_DIR": "/m", "HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    understood = yaml.safe_load(done.stdout)["services"]
    assert understood.keys() <= read(name)["services"].keys()
    assert understood["router"]["command"] == read(name)["services"]["router"]["command"]


def _works(client: list[str]) -> bool:
    """The first generation of docker-compose knows an older specification."""
    if shutil.which(client[0]) is None:
        return False
    done = subprocess.run([*client, "version"], capture_output=True, text=True, check=False)
    return done.returncode == 0 and "docker-compose version 1." not in done.stdout
