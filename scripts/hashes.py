"""Prints the pins of a pip report (`pip install --report FILE`) with the SHA-256 of each file.

`make lock` writes them to constraints/EXTRA.hashes.txt, by which `make install VERIFY=1` installs.
Of the report only names, versions and hashes are kept, never the address of an index.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def hashed_pins(report: dict[str, Any]) -> list[str]:
    """Lines for `pip install --require-hashes`, by name. Raises KeyError without a SHA-256."""
    items = sorted(report["install"], key=lambda item: item["metadata"]["name"].lower())
    return [
        f"{item['metadata']['name']}=={item['metadata']['version']} "
        f"--hash=sha256:{item['download_info']['archive_info']['hashes']['sha256']}"
        for item in items
    ]


if __name__ == "__main__":
    print("\n".join(hashed_pins(json.loads(Path(sys.argv[1]).read_text()))))
