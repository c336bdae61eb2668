"""What people are shown of each verb's result."""

from typing import Any

import msgspec
import pytest

from services.ctl.registry import VERBS
from tests.unit.common.net import rows

WORKER = msgspec.to_builtins(rows.WORKER)
MIXED = WORKER | {"role": "mixed", "configured_role": "decode", "role_since_s": 7.0}
ATTEMPT = {
    "attempt": 1, "state": "ended", "outcome": "length", "received_ms_ago": 5000, "total_ms": 100.0,
    "gateway": "g0", "prompt_tokens": 40, "max_tokens": 8,
    "candidates": [{"role": "decode", "name": "d0", "score": [0.1, 2]}],
    "phases": [
        {"phase": "queue", "start_ms": 0.0, "end_ms": 25.0},
        {"phase": "decode", "start_ms": 25.0, "end_ms": None},
    ],
    "sentences": ["queued for 25.0 ms", "ended (length) with 8 tokens"],
}  # fmt: skip
TIMELINE = {
    "request_id": "abc", "outcome": "ended", "code": "", "total_ms": 100.0, "ttft_ms": 80.0,
    "tpot_ms": 4.25, "moves": 0,
    "completion_tokens": 8,
    "phases": [
        {"phase": "prefill", "attempt": 1, "worker": "p0", "start_ms": 0.0, "ms": 75.0},
        {"phase": "transfer", "attempt": 1, "worker": "p0>d0", "start_ms": 75.0, "ms": 25.0},
    ],
}  # fmt: skip
SLOW = {
    "request_id": "abc", "outcome": "ended", "code": "", "sentence": "", "ago_ms": 5000,
    "total_ms": 100.0, "ttft_ms": 80.0, "tpot_ms": 4.25, "prompt_tokens": 40,
    "completion_tokens": 8, "longest_phase": "prefill", "longest_worker": "p0", "longest_ms": 75.0,
}  # fmt: skip
LATE = {"outcome": "failed", "code": "draining", "sentence": "the router is stopping"}
STATUS = {
    "ready": False, "reason": "none of 1 known decode workers is ready", "model": "",
    "router": "r0", "incarnation": "1", "draining": False, "max_model_len": 0,
    "uptime_s": 7.0, "prefill_ready": 1, "decode_ready": 0, "gateways": 1,
    "active": 0, "active_max": 0, "queued": 3, "queued_max": 1024, "queued_bytes": 4096,
    "queued_bytes_max": 1 << 20,
    "drained_per_s": None, "policy": "least_loaded", "mode": "disaggregated",
    "remote_prefill": "auto", "retry_reservations": 12, "retry_redeemed_share": 0.25,
    "estimates": {"prefill_tokens_per_s": {"256": 9000.0}, "handoff_tail_ms": 12.5},
    "totals": {"submitted": 4}, "refused": {"queue_full": 1}, "dropped": {},
}  # fmt: skip
REQUEST = {
    "request_id": "abc", "attempt": 1, "state": "queued", "age_ms": 12.0, "prompt_tokens": 40,
    "max_tokens": 8, "prefill": "", "decode": "", "gateway": "g0", "waits_for": "a decode slot",
}  # fmt: skip
QUEUED = {
    "request_id": "abc", "class": "interactive", "tenant": "t", "waited_ms": 12.0,
    "start_within_ms": 3000.0, "prompt_tokens": 40, "output_tokens": 8, "waits_for": "a slot",
}  # fmt: skip
POLICY = {
    "policy": "cost", "remote_prefill": "auto", "mode": "disaggregated",
    "policies": {"cost": "predicted seconds", "round_robin": "each in turn"},
}  # fmt: skip
BALANCE = {
    "model": "chat", "mode": "on", "looked_s": 2.5, "requests_per_s": 12.3, "prompt_tokens": 800,
    "output_tokens": 120, "before": "11.90/s of 700 + 130 tokens", "serves_per_s": "3P+2D 9.00",
    "would": "one more prefill worker", "why": "4P+1D would serve more", "ordered_s": 312.0,
    "ordered": "d1 to prefill: 3P+2D would serve more",
}  # fmt: skip
SCALED = BALANCE | {
    "phases": "decode 900 tokens/s in batches of 4.0", "hint": "decode holds prefill up",
    "scale_mode": "on", "scale_would": "2 more decode", "scale_why": "3.10 decode workers' work",
    "scale_open": "2 more decode workers, asked for 9 s", "scale_did_s": 75.0,
    "scale_did": "1 more decode workers: failed, no room",
}  # fmt: skip
QUIET = BALANCE | {"scale_mode": "off", "scale_would": "", "scale_why": ""}
UNWATCHED = {"model": "code", "mode": "off", "would": "", "why": "[router.balance] mode is off"}
LIMITS = {
    "limits": {"max_queue": 1024, "ttft_slo_ms": 0.0},
    "set_here": {"k": {"weight": 4.0}},
    "keys": [{"key_id": "k", "live": 1, "requests_left": None, "cost_left": 90.5}],
}
KEY = {
    "key_id": "", "tenant": "t", "running": 1, "queued": 0, "requests_left": None, "cost_left": 9.5,
    "limits_set_here": True,
}  # fmt: skip
HELP = {
    "usage": "explain id", "help": "a timeline",
    "args": [{"name": "id", "help": "x", "choices": []}],
}  # fmt: skip
HOLD = {
    "owner": "p0", "side": "send", "peer": "d0", "request_id": "abc", "attempt": 1, "state": "over",
    "orphan": True, "blocks": 3, "bytes": 3 << 20, "lease_left_ms": 12_000.0, "age_ms": 900.0,
}  # fmt: skip
COUNTS = dict.fromkeys(
    ("handoffs_in", "handoffs_out", "bytes_in", "bytes_out", "early_bytes_out", "retries",
     "refetches", "digest_mismatches", "recomputes", "leases_expired", "store_held", "store_read",
     "store_damaged"), 0
) | {"bytes_out": 4 << 20, "early_bytes_out": 3 << 20}  # fmt: skip
LEDGER = {
    "holds": [HOLD], "holds_total": 9, "bytes_total": 1, "orphans": 1,
    "workers": [
        {"name": "p0", "role": "prefill", "holds": 1, "counts": COUNTS},
        {"name": "d0", "role": "decode", "holds": 0, "counts": {}},
    ],
}  # fmt: skip
STORE = {
    "worker": "d0", "role": "decode", "tier": "disk", "state": "failed", "blocks": 3,
    "blocks_max": 8, "bytes": 3 << 20, "bytes_max": 8 << 20, "written": 9, "hits": 4, "evicted": 1,
    "expired": 2, "damaged": 0, "skipped": 5, "ttl_s": 300, "pinned": 7,
}  # fmt: skip
STORE_ORDER = {"worker": "s0", "role": "pool", "action": "pin", "blocks": 3, "wanted": 10}
PAIR = msgspec.to_builtins(rows.PAIR)
REST = {
    "prefill": "p0", "decode": "d0", "state": "open", "since_s": 5.0, "retry_in_s": 9.0,
    "openings": 2, "kind": "lost", "message": "no answer",
}  # fmt: skip
PROMPT = {
    "digest": "6262", "request_id": "r1", "workers": ["d0", "d1"], "left_s": 42.0, "refused": 3,
}  # fmt: skip
EVENT = {"unix_ms": 1_700_000_000_000, "level": "info", "request_id": "", "sentence": "number 4"}
MOVE = {"request_id": "abc", "attempt": 1, "from": "d0", "to": "", "could_go_to": ["d1", "d2"]}
EVICTED = (
    "decode d0 is draining: 2 requests were dropped (2: a); 3 streams move with their KV; "
    "ask again to drop what does not"
)
DRAIN = {"worker": "d0", "role": "decode", "state": "draining", "requests_left": 3}
BECOMING = "decode d0 becomes a prefill worker: 3 requests move or finish first"
BECOMES = {**DRAIN, "becomes": "prefill", "role_s": 7.0, "confirmed": True}


@pytest.mark.parametrize(
    ("verb", "result", "shows"),
    [
        ("status", STATUS, ["NO: none of 1 known", "3 of 1024", "4.0 KiB", "refused queue_full"]),
        (
            "status",
            STATUS,
            ["learned prefill_tokens_per_s", "256: 9000", "handoff_tail_ms"],
        ),
        (
            "status",
            STATUS | {"ready": True, "drained_per_s": 4.5},
            ["yes", "4.5 requests/s", "12 told when to come back, 25% of them expected"],
        ),
        ("requests", [REQUEST | {"move": "leaves for d1 (room)"}], ["leaves for d1 (room)"]),
        ("status", STATUS | {"flapping": {"d2": "died 9 times"}}, ["FLAPPING d2", "died 9 times"]),
        ("workers", [WORKER], ["d0", "2/8", "50%", "25%", "90.0 s"]),
        ("workers", [WORKER | {"kv_tokens_max": 0}], ["d0"]),
        (
            "workers",
            [WORKER | {"accepted": 0.625, "tokens_per_output": 2.86}],
            ["DRAFTS", "62% accepted, 2.9 tokens a step"],
        ),
        ("workers", [WORKER | {"accepted": 0.0, "tokens_per_output": 1}], ["0% accepted"]),
        (
            "workers",
            [WORKER | {"reason": "a", "verdict": "down", "verdict_reason": "b"}],
            ["a; its host says down: b"],
        ),
        ("workers", [MIXED | {"role_epoch": 2}], ["decode in its file, mixed for 7 s"]),
        ("workers", [], ["no worker has said hello"]),
        ("requests", [REQUEST], ["ATTEMPT", "abc", "12 ms", "a decode slot"]),
        ("requests", [], ["no request is queued or running"]),
        ("requests", [QUEUED], ["MUST START IN", "1  abc", "interactive", "3.0 s"]),
        (
            "explain",
            {"request_id": "abc", "attempts": [ATTEMPT]},
            ["request abc", "ended (length)", "75.00 ms so far", "- queued for 25.0 ms", "0.1 2"],
        ),
        (
            "explain",
            {"request_id": "abc", "attempts": [ATTEMPT], "timeline": TIMELINE},
            ["ended after 100.00 ms", "most of it, 75%: prefill on p0", "p0>d0", "##########|"],
        ),
        ("explain", [SLOW], ["LONGEST PHASE", "abc", "prefill on p0: 75 ms", "4.2 ms"]),
        ("explain", [SLOW | LATE], ["draining", "the router is stopping"]),
        ("explain", [], ["no such request is kept"]),
        ("policy", POLICY, ["remote prefill  auto", "*  cost", "round_robin  each in turn"]),
        ("balance", [BALANCE], ["chat, mode on, looked 2.5 s ago", "12.30/s of 800 + 120 tokens"]),
        ("balance", [BALANCE], ["before  11.90/s", "serves  3P+2D 9.00 requests/s", "4P+1D would"]),
        ("balance", [BALANCE], ["would   one more prefill worker", "did     5 min ago: d1 to"]),
        ("balance", [BALANCE, UNWATCHED], ["\n\nmodel  code, mode off\n", "change nothing"]),
        ("balance", [UNWATCHED | {"why": ""}], ["why    not looked yet"]),
        (
            "balance",
            [SCALED],
            ["phases   decode 900", "hint     decode holds", "2 more decode: 3"],
        ),
        ("balance", [SCALED], ["asked for 9 s", "75.0 s ago: 1 more decode workers: failed"]),
        ("balance", [QUIET], ["mode off: order nothing: not looked yet"]),
        ("help", [HELP], ["explain id", "a timeline"]),
        ("limits", LIMITS, ["max_queue", "set here for key k: weight 4", "RUNNING", "90.5"]),
        ("keys", [KEY], ["(no key)", "9.5", "set here"]),
        ("kv", LEDGER, ["over ORPHAN", "1 holds are ORPHANS", "9 holds in all, 1 shown"]),
        ("kv", LEDGER, ["3.0 MiB", "75%"]),
        ("kv", LEDGER | {"holds": []}, ["no worker holds KV for another\n", "\n\nWORKER"]),
        ("store", [STORE], ["failed", "3/8", "3.0 MiB of 8.0 MiB", "5 min"]),
        ("store", [STORE_ORDER], ["WORKER", "ORDER", "s0", "pin", "3/10"]),
        ("store", [], ["[kv.store] ram_mib turns it on"]),
        ("pairs", [PAIR], ["p0", "ok", "7", "1.0 GiB", "1.0 MiB/s"]),
        ("pairs", [PAIR | {"unreachable_s": 3}], ["unreachable for 3.0 s"]),
        ("quarantine", {"cleared": 0, "pairs": [REST]}, ["open", "5.0 s", "9.0 s", "no answer"]),
        (
            "quarantine",
            {"cleared": 0, "pairs": [], "prompts": [PROMPT]},
            ["no pair had trouble\n\n", "6262", "d0, d1", "42.0 s", "3", "r1"],
        ),
        (
            "events",
            {"events": [EVENT, EVENT | {"level": "warning", "request_id": "abc"}], "missed": 3},
            ["(3 older events are gone)\n", "   number 4\n", " ! number 4 [abc]"],
        ),
    ],
)
def test_people_are_shown(verb: str, result: Any, shows: list[str]) -> None:
    text = VERBS[verb].render(result)
    for part in shows:
        assert part in text


@pytest.mark.parametrize(
    ("verb", "result", "sentence"),
    [
        (
            "drain",
            DRAIN | {"kv_tokens_left": 99},
            "decode d0 is draining: 3 requests (99 KV tokens) are left; ask again",
        ),
        (
            "drain",
            DRAIN | {"state": "drained"},
            "decode d0 is drained: nothing runs there, it may be stopped",
        ),
        ("resume", DRAIN | {"state": "ready"}, "decode d0 is ready, with 3 requests"),
        (
            "role",
            BECOMES,
            f"{BECOMING}; ask again",
        ),
        (
            "role",
            BECOMES | {"confirmed": False},
            f"{BECOMING}, and it has not confirmed the order yet; ask again",
        ),
        (
            "role",
            BECOMES | {"becomes": "", "state": "ready"},
            "decode d0 is ready, in this role for 7 s",
        ),
        (
            "move",
            MOVE | {"to": "d1"},
            "request abc leaves d0 for d1; `explain abc` says what became of it",
        ),
        (
            "move",
            MOVE,
            "request abc leaves d0 for d1 or d2; `explain abc` says what became of it",
        ),
        (
            "evict",
            DRAIN | {"requests_dropped": 2, "requests_moving": 3, "dropped_because": {"a": 2}},
            EVICTED,
        ),
        (
            "evict",
            {"request_id": "r", "was": "queued", "requests_dropped": 1},
            "request r was queued; it is dropped",
        ),
        (
            "evict",
            DRAIN | {"requests_dropped": 3},
            "decode d0 is draining: 3 requests were dropped",
        ),
        ("quarantine", {"cleared": 2, "pairs": []}, "2 pairs may try again\n\nno pair had trouble"),
        ("reload", {"sentence": "max_queue"}, "in force now: max_queue"),
    ],
)
def test_what_an_order_did_is_said_in_words(verb: str, result: Any, sentence: str) -> None:
    assert VERBS[verb].render(result) == sentence


def test_one_that_began_in_both_roles_has_no_other_than_its_own() -> None:
    assert "in its file" not in VERBS["workers"].render([MIXED])
