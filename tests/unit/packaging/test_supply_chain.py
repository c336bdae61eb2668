"""The hashed set repeats the pins; the bill of materials names what is installed."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from scripts import hashes, sbom

CONSTRAINTS = Path(__file__).parents[3] / "constraints"


def pins(text: str) -> set[tuple[str, str]]:
    lines = [line.split(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    return {(sbom.canonical(name), version) for name, version in (x.split("==") for x in lines)}


@pytest.mark.parametrize("extra", ["cpu", "cuda"])
def test_every_pin_has_a_hash_and_every_hash_a_pin(extra: str) -> None:
    hashed = (CONSTRAINTS / f"{extra}.hashes.txt").read_text()
    assert pins(hashed) == pins((CONSTRAINTS / f"{extra}.txt").read_text()), "run make lock"
    for line in hashed.splitlines()[1:]:
        assert re.fullmatch(r"\S+==\S+ --hash=sha256:[0-9a-f]{64}", line), line


def entry(name: str, version: str, **archive: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "version": version},
        "download_info": {"url": "https://index.example/x.whl", "archive_info": archive},
    }


def test_of_pips_report_only_names_versions_and_hashes_are_kept() -> None:
    report = {"install": [entry("B", "2", hashes={"sha256": "b" * 64}),
                          entry("a", "1", hashes={"sha256": "a" * 64})]}  # fmt: skip
    head, *lines = hashes.locked(report, "cpu").splitlines()
    assert head.startswith("# The pinned set with its hashes, cpu")
    assert lines == [f"a==1 --hash=sha256:{'a' * 64}", f"B==2 --hash=sha256:{'b' * 64}"]


def test_a_file_without_a_hash_is_refused() -> None:
    with pytest.raises(hashes.HashError, match="no SHA-256 of a 1"):
        hashes.locked({"install": [entry("a", "1")]}, "cpu")


def test_the_bill_names_all_that_is_installed_and_what_needs_what() -> None:
    known = sbom.read_hashes(CONSTRAINTS)
    bill = sbom.bill(list(metadata.distributions()), known)
    assert bill == sbom.bill(list(reversed(list(metadata.distributions()))), known)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    assert bill["metadata"]["component"]["name"] == "baton-serve"
    components = {each["name"]: each for each in bill["components"]}
    assert components["pyzmq"]["version"] == metadata.version("pyzmq")
    assert components["pyzmq"]["purl"] == f"pkg:pypi/pyzmq@{metadata.version('pyzmq')}"
    assert components["pyzmq"]["licenses"]
    refs = [each["bom-ref"] for each in bill["components"]]
    assert len(set(refs)) == len(refs)
    needs = {each["ref"]: each["dependsOn"] for each in bill["dependencies"]}
    ours = needs[bill["metadata"]["component"]["bom-ref"]]
    assert components["msgspec"]["purl"] in ours
    assert {ref for refs in needs.values() for ref in refs} <= needs.keys()
