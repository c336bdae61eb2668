"""The answer of the allow-list about one Hello. Pure; the router's core imports it."""

from __future__ import annotations

from typing import NamedTuple


class Speaker(NamedTuple):
    """What the allow-list says of a host that speaks for a daemon."""

    #: Its name in the list.
    host: str
    #: Why it may not speak for this daemon; empty = it may.
    denied: str = ""
    #: Whether its entry lists the daemon's name, so that no other host may ever speak for it.
    listed: bool = False
