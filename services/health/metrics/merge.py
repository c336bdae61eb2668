"""Merges pages of metrics: each family once, each sample with its daemon's name. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Daemon = tuple[str, str]
"""Role and name."""


@dataclass(slots=True)
class _Family:
    head: list[str] = field(default_factory=list)
    samples: list[str] = field(default_factory=list)


def merged(pages: Mapping[Daemon, str]) -> str:
    """`pages`: Prometheus text by daemon. Lines before the first HELP of a page are dropped."""
    families: dict[str, _Family] = {}
    for (role, name), page in pages.items():
        labels = f'service="{role}",daemon="{name}"'
        current: _Family | None = None
        for line in page.splitlines():
            if line.startswith("# HELP "):
                current = families.setdefault(line.split(" ", 3)[2], _Family())
                if not current.head:
                    current.head.append(line)
            elif line.startswith("# TYPE ") and current is not None:
                if len(current.head) == 1:
                    current.head.append(line)
            elif line and not line.startswith("#") and current is not None:
                current.samples.append(_labelled(line, labels))
    lines = [line for family in families.values() for line in (*family.head, *family.samples)]
    return "\n".join([*lines, ""])


def _labelled(line: str, labels: str) -> str:
    brace, space = line.find("{"), line.find(" ")
    if 0 <= brace < space:
        return f"{line[: brace + 1]}{labels},{line[brace + 1 :]}"
    return f"{line[:space]}{{{labels}}}{line[space:]}"


def sample(page: str, name: str) -> float | None:
    """The value of a sample without labels, None when it is not there."""
    for line in page.splitlines():
        if line.startswith(name) and line[len(name) : len(name) + 1] == " ":
            return float(line.rsplit(" ", 1)[1])
    return None
