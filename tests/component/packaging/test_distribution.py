"""The distribution: its names are ours, its pins hold together, its contracts can fail: the tests
that start something."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.packaging.test_distribution import PACKAGES, ROOT

BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def copied_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("tree")
    shutil.copy(ROOT / "pyproject.toml", tree)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tree / package, ignore=shutil.ignore_patterns("*.pyc"))
    return tree


def lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "lint-imports"), "--no-cache"]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("path", "line", "contract"),
    [
        ("common/planted.py", "import loadtest", "common never imports"),
        ("services/health/planted.py", "import services.router", "no service imports another"),
        ("services/router/placement/policies/planted.py", "import common.clock", "sans-IO"),
        ("services/router/records/planted.py", "import services.router.core", "router's rooms"),
        ("services/router/admin/planted.py", "import zmq.asyncio", "only common.net.sockets"),
        ("common/engine/planted.py", "import ucxx", "only common.kv.transport.ucx"),
        (
            "services/gateway/http/planted.py",
            "from vllm.v1 import engine",
            "only the engine adapters",
        ),
        ("common/kv/handoff/planted.py", "import torch", "only the engine adapters"),
    ],
)
def test_a_planted_import_breaks_its_contract(
    copied_tree: Path, path: str, line: str, contract: str
) -> None:
    planted = copied_tree / path
    planted.write_text(line + "\n")
    try:
        result = lint_imports(copied_tree)
    finally:
        planted.unlink()
    assert result.returncode == 1
    broken = [text for text in result.stdout.splitlines() if " BROKEN" in text]
    assert any(contract in text for text in broken), result.stdout


@pytest.mark.parametrize(
    ("code", "rule"),
    [
        ("import asyncio\nasyncio.create_task(x)\n", "TID251"),
        ("import asyncio\nasyncio.ensure_future(x)\n", "TID251"),
        ("from pickle import loads\n", "TID251"),
        ("import yaml\nyaml.load(x)\n", "TID251"),
        ("eval(x)\n", "S307"),
        ("exec(x)\n", "S102"),
    ],
)
def test_what_the_style_bans_is_refused(code: str, rule: str) -> None:
    def rules(name: str) -> str:
        command = [str(BIN / "ruff"), "check", "--output-format=concise", "--stdin-filename", name]
        done = subprocess.run(
            [*command, "-"], cwd=ROOT, input=code, capture_output=True, text=True, check=False
        )
        return done.stdout

    assert f" {rule} " in rules("common/planted.py")
    assert f" {rule} " in rules("tests/unit/planted.py")
    if "asyncio" in code:
        assert rule not in rules("common/process/lifecycle.py")
