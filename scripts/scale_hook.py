"""A hook of `[router.scale]`, to be used as it is or as a model for your own.

    scale_hook.py systemd NAME...              spare workers of the fleet file, by their units
    scale_hook.py compose FILE... SERVICE      replicas of a service of compose files

It reads the order on standard input. `systemd` starts units `baton-ROLE@NAME` of names that are not
here yet, and stops the one that is named. `compose` raises the number of replicas of SERVICE, and
stops the container whose worker is named (`compose/compose.scale.yaml`). It returns before workers
are ready: the router sees them come. It needs Python alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any


def main(words: Sequence[str]) -> int:
    """Returns the exit status: 0, or that of the command, or 1 when there is nothing to start."""
    order = json.load(sys.stdin)
    kinds = {"systemd": _systemd, "compose": _compose}
    if len(words) < 2 or words[0] not in kinds:
        print(__doc__, file=sys.stderr)
        return 2
    command = kinds[words[0]](order, words[1:])
    if not command:
        print("no spare worker is left", file=sys.stderr)
        return 1
    print(" ".join(command), flush=True)
    return subprocess.run(command, check=False).returncode


def _systemd(order: dict[str, Any], names: Sequence[str]) -> list[str]:
    unit = f"baton-{order['role']}@"
    if order["direction"] == "in":
        return ["systemctl", "stop", "--no-block", unit + order["worker"]]
    spare = [name for name in names if name not in order["workers"]][: order["count"]]
    units = [unit + name for name in spare]
    return ["systemctl", "start", "--no-block", *units] if units else []


def _compose(order: dict[str, Any], words: Sequence[str]) -> list[str]:
    """A replica's worker is named `d` and the id of its container."""
    *files, service = words
    if order["direction"] == "in":
        return ["docker", "stop", order["worker"].removeprefix("d")]
    compose = ["docker", "compose", *(word for file in files for word in ("-f", file))]
    listed = subprocess.run(
        [*compose, "ps", "--quiet", service], capture_output=True, text=True, check=False
    )
    replicas = len(listed.stdout.split()) + order["count"]
    return [
        *compose,
        "up",
        "--detach",
        "--no-recreate",
        "--scale",
        f"{service}={replicas}",
        service,
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
