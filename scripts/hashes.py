"""Writes constraints/EXTRA.hashes.txt: the pinned set with the SHA-256 of each file that pip takes.

`make lock` calls it after the pins are made, with EXTRA=cuda after they were resolved without
installing anything; `make install VERIFY=1` installs by it, so that a file
which was replaced at the index is refused. The hashes are of the wheels for this platform and this
Python; on others install without. pip says what it would install (`--dry-run --report`) for exactly
the pins; nothing but names, versions and hashes is kept of its answer.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


class HashError(Exception):
    """Its text is the line that the person sees."""


def report(pins: Path) -> dict[str, Any]:
    """pip's own, for these pins on this interpreter."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps"]
        command += ["--ignore-installed", "--report", str(out), "--requirement", str(pins)]
        if subprocess.run(command, check=False).returncode != 0:
            raise HashError(f"pip could not resolve {pins}; see its words above")
        found: dict[str, Any] = json.loads(out.read_text())
        return found


def locked(found: dict[str, Any], platform: str) -> str:
    """The text of the hashed file. Raises HashError for a file without a SHA-256."""
    lines = [
        f"# The pinned set with its hashes, {platform}. Made by `make lock`, not by hand.",
    ]
    for each in sorted(found["install"], key=lambda item: item["metadata"]["name"].lower()):
        name, version = each["metadata"]["name"], each["metadata"]["version"]
        digest = each["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
        if not digest:
            raise HashError(f"the index gives no SHA-256 of {name} {version}")
        lines.append(f"{name}=={version} --hash=sha256:{digest}")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--extra", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--report", type=Path, help="pip's report, if it is already made")
    given = parser.parse_args()
    target = ROOT / "constraints" / f"{given.extra}.hashes.txt"
    pins = ROOT / "constraints" / f"{given.extra}.txt"
    platform = f"{given.extra}, {sysconfig.get_platform()}, Python 3.{sys.version_info[1]}"
    try:
        found = json.loads(given.report.read_text()) if given.report else report(pins)
        target.write_text(locked(found, platform))
    except HashError as error:
        print(f"hashes: {error}", file=sys.stderr)
        return 1
    print(f"hashes: {len(found['install'])} written to {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
