"""The measurements behind `baton bench`, `baton profile` and `baton plan`."""

from __future__ import annotations

from loadtest.bench.command import main as load


def main(command: str, arguments: list[str]) -> int:
    """The exit status, as the command's help says."""
    del command
    return load(arguments)
