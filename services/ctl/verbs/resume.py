"""`baton ctl resume`: ends a drain."""

from __future__ import annotations

from services.ctl.verb import Verb
from services.ctl.verbs.drain import WORKER, render

VERB = Verb(
    "resume", "let a drained worker have work again", render, (WORKER,), examples=("resume d0",)
)
