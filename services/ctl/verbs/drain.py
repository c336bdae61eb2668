"""`baton ctl drain`, `resume` and `evict`, for people."""

from __future__ import annotations

from typing import Any


def render(result: Any) -> str:
    if "request_id" in result:
        return f"request {result['request_id']} was {result['was']}; it is dropped"
    who = f"{result['role']} {result['worker']}"
    dropped = result.get("requests_dropped")
    if dropped is not None:
        return f"{who} is {result['state']}: {dropped} requests were dropped"
    left = result["requests_left"]
    if result["state"] == "draining":
        tokens = result["kv_tokens_left"]
        return f"{who} is draining: {left} requests ({tokens} KV tokens) are left; ask again"
    if result["state"] == "drained":
        return f"{who} is drained: nothing runs there, it may be stopped"
    return f"{who} is {result['state']}, with {left} requests"
