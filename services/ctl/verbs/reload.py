"""`baton ctl reload`: makes the router read its fleet file again."""

from __future__ import annotations

from services.ctl.verb import Verb

VERB = Verb(
    "reload",
    "make the router read its fleet file again",
    lambda result: f"in force now: {result['sentence']}",
    examples=("reload  # says what is in force, and what waits for a restart",),
)
