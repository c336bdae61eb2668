"""The hashed set repeats the pins, and nothing else comes into it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from scripts import hashes

CONSTRAINTS = Path(__file__).parents[3] / "constraints"


def pins(text: str) -> set[tuple[str, str]]:
    lines = [line.split(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    split = (line.split("==") for line in lines)
    return {(re.sub(r"[-_.]+", "-", name).lower(), version) for name, version in split}


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
    pins = [f"a==1 --hash=sha256:{'a' * 64}", f"B==2 --hash=sha256:{'b' * 64}"]
    assert hashes.hashed_pins(report) == pins


def test_a_file_without_a_hash_is_refused() -> None:
    with pytest.raises(KeyError, match="hashes"):
        hashes.hashed_pins({"install": [entry("a", "1")]})
