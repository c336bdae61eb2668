"""`baton ctl ready`: an exit status for scripts and health checks. The router has no such verb; the
answer is drawn from its `status` and `workers`."""

from __future__ import annotations

from typing import Any

from common.errors import BatonError, Code
from services.ctl.verb import Ask, Verb, argument


def run(ask: Ask, args: dict[str, Any]) -> str:
    """Raises BatonError(NO_CAPACITY) that says what is not ready."""
    names = args.get("workers", [])
    if not names:
        status = ask("status", {})
        if not status["ready"]:
            raise BatonError(Code.NO_CAPACITY, status["reason"])
        return "it can serve"
    states = {worker["name"]: worker["state"] for worker in ask("workers", {})}
    states = {name: states.get(name, "not here") for name in names}
    missing = [f"{name}: {state}" for name, state in states.items() if state != "ready"]
    if missing:
        raise BatonError(Code.NO_CAPACITY, ", ".join(missing))
    return f"{', '.join(names)}: ready"


VERB = Verb(
    "ready",
    "exit with status 0 if the fleet, or each of these workers, can serve, else 1",
    arguments=(argument("workers", nargs="*", metavar="WORKER", help="default: the fleet"),),
    examples=("ready && echo the fleet can serve", "ready p0 d0"),
    run=run,
)
