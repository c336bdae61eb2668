"""Prints the software bill of materials of this environment: CycloneDX 1.5, as JSON.

Every distribution that the interpreter sees, with version, licence, what it needs, and, where the
hashed set has the same version, the SHA-256 of the file it came from. The same environment gives
the same text.
"""

from __future__ import annotations

import json
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OURS = "baton-serve"
HASHED = re.compile(r"^(\S+)==(\S+) --hash=sha256:([0-9a-f]{64})$")
LICENCE_CHARS_MAX = 100  # some put the whole text into the field


def canonical(name: str) -> str:
    """As PEP 503 and package URLs have it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_hashes(folder: Path) -> dict[tuple[str, str], str]:
    """By (name, version), from all hashed sets."""
    found = {}
    for path in sorted(folder.glob("*.hashes.txt")):
        for line in path.read_text().splitlines():
            match = HASHED.match(line)
            if match:
                found[canonical(match[1]), match[2]] = match[3]
    return found


def bill(
    distributions: list[metadata.Distribution], hashes: dict[tuple[str, str], str]
) -> dict[str, Any]:
    """A CycloneDX document without serial number and date, which would differ each time. Of a name
    that is there twice the later version counts."""
    ordered = sorted(distributions, key=lambda each: (each.version, sorted(each.requires or [])))
    by_name = {canonical(each.metadata["Name"]): each for each in ordered}
    names = sorted(by_name)
    components = [_component(by_name[name], hashes) for name in names]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": next(c for c in components if c["name"] == OURS)},
        "components": [c for c in components if c["name"] != OURS],
        "dependencies": [_needs(by_name[name], by_name) for name in names],
    }


def _component(
    distribution: metadata.Distribution, hashes: dict[tuple[str, str], str]
) -> dict[str, Any]:
    name, version = canonical(distribution.metadata["Name"]), distribution.version
    component: dict[str, Any] = {
        "type": "application" if name == OURS else "library",
        "bom-ref": _ref(distribution),
        "name": name,
        "version": version,
        "purl": _ref(distribution),
    }
    licence = _licence(distribution)
    if licence:
        component["licenses"] = [{"license": {"name": licence}}]
    if (name, version) in hashes:
        component["hashes"] = [{"alg": "SHA-256", "content": hashes[name, version]}]
    return component


def _needs(
    distribution: metadata.Distribution, there: dict[str, metadata.Distribution]
) -> dict[str, Any]:
    """Of what it may need, what is there."""
    wanted = {
        canonical(re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0])
        for requirement in distribution.requires or []
    }
    refs = sorted(_ref(there[name]) for name in wanted & there.keys())
    return {"ref": _ref(distribution), "dependsOn": refs}


def _ref(distribution: metadata.Distribution) -> str:
    version = distribution.version.replace("+", "%2B")
    return f"pkg:pypi/{canonical(distribution.metadata['Name'])}@{version}"


def _licence(distribution: metadata.Distribution) -> str:
    fields = distribution.metadata
    texts = [*(fields.get_all("License-Expression") or []), *(fields.get_all("License") or [])]
    said = texts[0] if texts else ""
    if said and len(said) <= LICENCE_CHARS_MAX and "\n" not in said:
        return said
    listed = [c for c in fields.get_all("Classifier") or [] if c.startswith("License :: ")]
    return listed[0].rsplit(" :: ", 1)[-1] if listed else ""


def main() -> int:
    document = bill(list(metadata.distributions()), read_hashes(ROOT / "constraints"))
    print(json.dumps(document, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
