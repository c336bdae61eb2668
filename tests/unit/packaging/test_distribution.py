"""The distribution: its names are ours, its pins hold together, its contracts can fail."""

import importlib
import importlib.metadata
import importlib.util
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from scripts.install import BROKEN_BESIDE_CPU_TORCH, PYTHONS, TORCH

ROOT = Path(__file__).parents[3]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
PACKAGES = ("services", "common", "loadtest")


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


def modules() -> set[str]:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    dotted = {str(path.relative_to(ROOT).with_suffix("")).replace("/", ".") for path in files}
    return {name.removesuffix(".__init__") for name in dotted}


def pure_sources() -> list[str]:
    contracts = PYPROJECT["tool"]["importlinter"]
    (pure,) = [c for c in contracts["contracts"] if c["id"] == "pure-cores"]
    sources: list[str] = pure["source_modules"]
    return sources


@pytest.mark.parametrize("source", pure_sources())
def test_what_the_purity_contract_names_exists(source: str) -> None:
    """The contract would pass in silence over a core or a room that was renamed."""
    pattern = source.replace(".", r"\.").replace("*", r"[\w]+")
    assert any(re.fullmatch(pattern, name) for name in modules())
