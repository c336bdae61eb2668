"""The distribution: its names are ours, its pins hold together, its contracts can fail."""

import importlib
import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from scripts.install import BROKEN_BESIDE_CPU_TORCH, PYTHONS, TORCH

ROOT = Path(__file__).parents[3]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
PACKAGES = ("services", "common", "loadtest")
BIN = Path(sys.executable).parent


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints" / "cpu.txt").read_text().splitlines()
    return dict(
        line.lower().replace("_", "-").split("==") for line in lines if not line.startswith("#")
    )


def requirements(*groups: str) -> list[Requirement]:
    extras = PROJECT["optional-dependencies"]
    return [Requirement(text) for group in groups for text in extras.get(group, [])] + [
        Requirement(text) for text in PROJECT["dependencies"]
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_package_names_resolve_to_this_tree(package: str) -> None:
    """Foreign distributions on PyPI are named `services` and `common` too."""
    module = importlib.import_module(package)
    assert module.__file__ is not None
    assert Path(module.__file__) == ROOT / package / "__init__.py"
    owners = set(importlib.metadata.packages_distributions().get(package, []))
    assert owners <= {"baton-serve"}
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.distribution(package)


def test_the_distribution_offers_the_command() -> None:
    assert PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == list(PACKAGES)
    distribution = importlib.metadata.distribution("baton-serve")
    assert distribution.version == PROJECT["version"]
    (entry,) = [e for e in distribution.entry_points if e.group == "console_scripts"]
    assert (entry.name, entry.value) == ("baton", "services.cli:main")
    assert callable(entry.load())


def test_every_dependency_is_bounded_and_the_engines_are_exact() -> None:
    for requirement in requirements("dev"):
        operators = {specifier.operator for specifier in requirement.specifier}
        assert operators & {"<", "=="}, f"{requirement} has no upper bound"
    for extra in ("cpu", "cuda"):
        for text in PROJECT["optional-dependencies"][extra]:
            (specifier,) = Requirement(text).specifier
            assert specifier.operator == "=="


def test_the_constraints_are_a_set_that_satisfies_us() -> None:
    pinned = pins()
    for requirement in requirements("cpu", "dev"):
        version = pinned[requirement.name.lower().replace("_", "-")]
        assert requirement.specifier.contains(version), f"{requirement} against {version}"
    assert pinned["torch"] == f"{TORCH}+cpu"
    assert not {*BROKEN_BESIDE_CPU_TORCH, "pip", "baton-serve", "services", "common"} & set(pinned)
    assert all(re.fullmatch(r"[\w.+]+", version) for version in pinned.values())


def test_the_installer_and_the_metadata_name_the_same_pythons() -> None:
    bounds = Requirement(f"x{PROJECT['requires-python']}").specifier
    assert all(bounds.contains(f"{version}.1") for version in PYTHONS)
    assert not bounds.contains("3.10.9")
    assert not bounds.contains("3.14.0")


@pytest.mark.parametrize(
    "module",
    [
        "services.router.core",
        "services.router.policies",
        "services.prefill.core",
        "services.decode.core",
        "services.gateway.core",
        "common.kv.handoff",
        "common.kv.lease",
        "common.messages",
    ],
)
def test_what_the_purity_contract_names_exists(module: str) -> None:
    """The contract's patterns would pass in silence over a core that was renamed."""
    assert importlib.util.find_spec(module) is not None


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
        ("services/router/policies/planted.py", "import common.clock", "sans-IO"),
        ("services/router/planted.py", "import zmq.asyncio", "only common.sockets"),
        ("common/engine/planted.py", "import ucxx", "only common.kv.ucx"),
        ("services/gateway/planted.py", "from vllm.v1 import engine", "only common.engine"),
        ("common/kv/planted.py", "import torch", "only common.engine"),
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
        assert rule not in rules("common/lifecycle.py")
