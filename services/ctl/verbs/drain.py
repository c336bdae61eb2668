"""`baton ctl drain`: takes a worker out without losing a request. `render` is also that of `resume`
and `evict`."""

from __future__ import annotations

from typing import Any

from services.ctl.verb import Verb, argument

WORKER = argument("worker", nargs="?", metavar="WORKER", help="its name, as `workers` lists it")


def render(result: Any) -> str:
    if "request_id" in result:
        return f"request {result['request_id']} was {result['was']}; it is dropped"
    worker = f"{result['role']} {result['worker']}"
    dropped = result.get("requests_dropped")
    if dropped is not None:
        return f"{worker} is {result['state']}: {dropped} requests were dropped"
    left = result["requests_left"]
    if result["state"] == "draining":
        tokens = result["kv_tokens_left"]
        return f"{worker} is draining: {left} requests ({tokens} KV tokens) are left; ask again"
    if result["state"] == "drained":
        return f"{worker} is drained: nothing runs there, it may be stopped"
    return f"{worker} is {result['state']}, with {left} requests"


VERB = Verb(
    "drain",
    "place nothing new on a worker and let it finish; again: how far it is",
    render,
    (WORKER,),
    examples=("drain d0  # ask again until it is drained",),
)
