"""`baton ctl drain`, `resume` and `evict`: takes a worker out, gently or at once; `role`: gives it
another role."""

from __future__ import annotations

from typing import Any


def render(result: Any) -> str:
    if "request_id" in result:
        return f"request {result['request_id']} was {result['was']}; it is dropped"
    worker = f"{result['role']} {result['worker']}"
    dropped = result.get("requests_dropped")
    if dropped is not None:
        return _evicted(worker, result)
    left = result["requests_left"]
    if result["state"] == "draining":
        tokens = result["kv_tokens_left"]
        return f"{worker} is draining: {left} requests ({tokens} KV tokens) are left; ask again"
    if result["state"] == "drained":
        return f"{worker} is drained: nothing runs there, it may be stopped"
    return f"{worker} is {result['state']}, with {left} requests"


def render_role(result: Any) -> str:
    worker = f"{result['role']} {result['worker']}"
    if not result["becomes"]:
        return f"{worker} is {result['state']}, in this role for {result['role_s']:g} s"
    left = f"{result['requests_left']} requests move or finish first"
    heard = "" if result["confirmed"] else ", and it has not confirmed the order yet"
    return f"{worker} becomes a {result['becomes']} worker: {left}{heard}; ask again"


def _evicted(worker: str, result: Any) -> str:
    reasons = result.get("dropped_because", {})
    why = ", ".join(f"{count}: {reason}" for reason, count in reasons.items())
    moving = result.get("requests_moving", 0)
    parts = [f"{result['requests_dropped']} requests were dropped" + (f" ({why})" if why else "")]
    if moving:
        parts.append(f"{moving} streams move with their KV; ask again to drop what does not")
    return f"{worker} is {result['state']}: {'; '.join(parts)}"
