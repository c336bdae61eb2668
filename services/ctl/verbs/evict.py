"""`baton ctl evict`: drops work at once."""

from __future__ import annotations

from services.ctl.verb import Verb, argument
from services.ctl.verbs.drain import WORKER, render

VERB = Verb(
    "evict",
    "drain a worker and move its requests elsewhere now; or end one request with an error",
    render,
    (WORKER, argument("--request", metavar="ID", help="instead: a request of `requests`")),
    examples=("evict d0", "evict request=3f2a9c41"),
)
