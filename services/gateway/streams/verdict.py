"""What a delta did to its stream."""

from __future__ import annotations

import enum


class Verdict(enum.Enum):
    """What a delta did. FINISHED and ERROR: D ended the attempt itself. STOPPED: a stop string was
    met and D must be told. BROKEN: tokens are missing or too many; D must be told."""

    DROPPED = "dropped"
    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    ERROR = "error"
    BROKEN = "broken"


SPOKE = frozenset({Verdict.RUNNING, Verdict.FINISHED, Verdict.STOPPED})
"""The delta's tokens were taken."""
