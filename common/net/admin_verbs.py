"""The verbs of the admin socket: what each is for, and what it takes.

A verb is declared here once. The router checks arguments by the declaration, and its verb `help`
shows it (what verbs do is in `services/router/admin`). `baton ctl` makes its command line, its help
and its completion of the declaration (`services/ctl`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from common.config import RemotePrefill
from common.messages import StoreAction

Value = str | int | bool

EVENTS_MAX = 1_000
KEYS_MAX = REQUESTS_MAX = 1_000
HOLDS_MAX = PAIRS_MAX = 4_096
KEY_LIMIT_MAX = 1_000_000_000
#: What an operator may set the router's limits to: the least and the most.
LIMIT_BOUNDS = {
    "max_active": (0, 1_000_000),
    "max_queue": (0, 1_000_000),
    "queue_bytes_max": (1, 1 << 40),
    "ttft_slo_ms": (0, 3_600_000),
}
#: The default of a limit: it stays as it is. Also that of `after`: the latest events.
UNSET = -1


@dataclass(frozen=True, slots=True)
class Arg:
    """One argument of a verb; its type is that of `default`."""

    name: str
    help: str
    #: None: the argument is required, and is text.
    default: Value | None = ""
    #: The allowed texts besides the default; empty = any.
    choices: tuple[str, ...] = ()
    #: The allowed range of a number.
    least: int = 0
    most: int = 1_000_000


@dataclass(frozen=True, slots=True)
class AdminVerb:
    """The declaration of one verb."""

    name: str
    #: One line, for the list of verbs and as the head of the verb's own help.
    help: str
    #: A text that comes first, and required ones after it, may be typed without their names.
    args: tuple[Arg, ...] = ()
    #: Command lines without `baton ctl`, with a shell comment where one helps.
    examples: tuple[str, ...] = ()

    def usage(self) -> str:
        shown = [
            a.name if a.default is None else f"[{a.name}={a.default}]".replace("=-1]", "]")
            for a in self.args
        ]
        return " ".join([self.name, *shown])


def _limit(name: str, text: str, least: int, most: int) -> Arg:
    return Arg(name, text, default=UNSET, least=least, most=most)


def _rows(default: int, most: int, what: str = "rows") -> Arg:
    return Arg("limit", f"{what} at most", default=default, least=1, most=most)


ADAPTER_ACTIONS = ("list", "load", "unload")
STORE_ACTIONS = ("list", *get_args(StoreAction))
_ROLES = ("prefill", "decode", "mixed")
_WORKER = Arg("worker", "a worker's name, as `workers` lists it", None)
_ALL = (
    AdminVerb(
        "status",
        "whether the fleet can serve, how full it is, what was refused and dropped",
        examples=("status", "status --watch --every 10"),
    ),
    AdminVerb(
        "workers",
        "every worker: state, load, KV promised and used",
        (Arg("role", "only this role", choices=(*_ROLES, "pool")),),
        examples=("workers decode", "workers --watch"),
    ),
    AdminVerb(
        "requests",
        "what is queued and running now, oldest first",
        (
            Arg("state", "only this state", choices=("queued", "placed", "decoding", "aborting")),
            Arg("queue", "what waits, in the order in which it would be served", default=False),
            _rows(100, REQUESTS_MAX),
        ),
        examples=("requests queued limit=20", "requests --queue  # who is served next"),
    ),
    AdminVerb(
        "explain",
        "one request's timeline, and why it was placed where it was; or the slowest, the failed",
        (
            Arg("id", "a request id, or the start of one"),
            Arg(
                "list",
                "instead: the slowest 1 %, the failures, what was refused, or the latest of all",
                choices=("slow", "failed", "refused", "recent"),
            ),
            Arg("by", "what slow means", default="total", choices=("ttft", "tpot", "total")),
            _rows(20, 256),
        ),
        examples=(
            "explain --slow by=ttft",
            "explain 3f2a9c  # the `id` of any response, or its start",
        ),
    ),
    AdminVerb(
        "events",
        "the router's latest log events",
        (
            Arg(
                "after",
                "only those after the one with this number",
                default=UNSET,
                least=-1,
                most=1 << 53,
            ),
            _rows(50, EVENTS_MAX, "events"),
        ),
        examples=("events --follow", "events after=1200 --json"),
    ),
    AdminVerb(
        "keys",
        "API keys in use: requests running and queued, and what is left of their limits",
        (_rows(100, KEYS_MAX),),
        examples=("keys  # the busiest first",),
    ),
    AdminVerb(
        "kv",
        "every hold of KV for another worker: owner, request, bytes, lease left; and the counts",
        (
            Arg("worker", "only this worker"),
            Arg("limit", "holds at most", default=100, least=0, most=HOLDS_MAX),
        ),
        examples=("kv  # the oldest hold first", "kv p0"),
    ),
    AdminVerb(
        "adapter",
        "LoRA adapters by worker; load one on all workers of its base, or let it go",
        (
            Arg("action", "what to do", default="list", choices=ADAPTER_ACTIONS),
            Arg("name", "the adapter's name, by which clients ask for it"),
            Arg("path", "for load: the folder of its files, on each worker's host"),
            Arg("model", "its base, where the fleet serves several models"),
        ),
        examples=(
            "adapter  # which worker has which in memory",
            "adapter load name=sql path=/srv/adapters/sql",
            "adapter unload name=sql",
        ),
    ),
    AdminVerb(
        "store",
        "KV that workers keep for later prompts: blocks by tier, hits, evictions, damage, time",
        (
            Arg("action", "what to do", default="list", choices=STORE_ACTIONS),
            Arg("request", "pin, unpin, drop: the blocks of this prompt, running or over"),
            Arg("session", "the same for all requests of this session that are known"),
            Arg("tokens", "only the first so many tokens of a prompt; 0 = all", default=0),
            Arg("worker", "only this worker or pool"),
        ),
        examples=(
            "store  # a row for memory, and one for the disk",
            "store worker=d0 --watch",
            "store pin request=3f2a9c41 tokens=4096  # wherever it lies",
            "store drop session=s-17 worker=s0",
        ),
    ),
    AdminVerb(
        "pairs",
        "what each pair of workers handed over: handoffs, bytes, time, retries, damage",
        (
            _rows(256, PAIRS_MAX),
            Arg("trouble", "only those that are left alone or not connected", default=False),
        ),
        examples=("pairs --trouble  # which workers cannot reach each other",),
    ),
    AdminVerb(
        "drain",
        "place nothing new on a worker and let it finish; again: how far it is",
        (_WORKER,),
        examples=("drain d0  # ask again until it is drained",),
    ),
    AdminVerb("resume", "let a drained worker have work again", (_WORKER,), ("resume d0",)),
    AdminVerb(
        "role",
        "let a worker prefill, decode, or do both, without a restart; again: how far it is",
        (_WORKER, Arg("role", "the role that it takes", None, choices=_ROLES)),
        examples=("role d1 prefill  # ask again until it has the role",),
    ),
    AdminVerb(
        "move",
        "let a running stream go on at another decode worker, with its KV",
        (
            Arg("request", "a request id, as `requests` lists it", None),
            Arg("to", "the decode worker on which it goes on; default: the best that has room"),
        ),
        examples=("move 3f2a9c41", "move request=3f2a9c41 to=d1"),
    ),
    AdminVerb(
        "evict",
        "a worker: drain it, its requests go elsewhere at once; a request: end it with an error",
        (
            Arg("worker", "a worker's name, as `workers` lists it"),
            Arg("request", "a request id, as `requests` lists it"),
        ),
        examples=("evict d0", "evict request=3f2a9c41"),
    ),
    AdminVerb(
        "quarantine",
        "pairs that had trouble handing KV over, prompts that killed workers; clear lifts it",
        (
            Arg("action", "list, or clear", default="list", choices=("list", "clear")),
            Arg("prefill", "only pairs of this prefill worker"),
            Arg("decode", "only pairs of this decode worker"),
            Arg("prompt", "only the prompt of this digest"),
        ),
        examples=("quarantine", "quarantine clear decode=d0"),
    ),
    AdminVerb(
        "policy",
        "how workers are chosen; a name sets it at once, until the router restarts",
        (
            Arg("name", "the placement policy from now on"),
            Arg(
                "remote_prefill",
                "when prompts are handed over from now on",
                choices=get_args(RemotePrefill),
            ),
        ),
        examples=("policy", "policy round_robin  # until the router restarts"),
    ),
    AdminVerb(
        "balance",
        "whether a worker should change its role, or a stream its worker: why, and what was done",
        examples=('balance  # [router.balance] mode = "dry" or "on" makes the router watch',),
    ),
    AdminVerb(
        "limits",
        "the limits in force and what keys have left; a value sets it at once, until a restart",
        (
            *(
                _limit(name, text, *LIMIT_BOUNDS[name])
                for name, text in (
                    ("max_active", "requests placed at once, 0 = all slots"),
                    ("max_queue", "requests waiting"),
                    ("queue_bytes_max", "bytes of waiting requests"),
                    ("ttft_slo_ms", "TTFT that admission promises, 0 = none"),
                )
            ),
            Arg("key", "this API key's id only; needed to set the limits below"),
            _limit("requests_per_min", "of the key, 0 = no limit", 0, KEY_LIMIT_MAX),
            _limit(
                "tokens_per_min", "of the key, in predicted cost, 0 = no limit", 0, KEY_LIMIT_MAX
            ),
            _limit("concurrency", "requests of the key at once, 0 = no limit", 0, KEY_LIMIT_MAX),
            _limit("weight", "share of the key's tenant, relative to others", 1, 1_000),
            _limit("kv_budget_mib", "KV a request of the key is promised at a time", 0, 1 << 20),
            Arg("reset", "back to what the key's file says", default=False),
        ),
        examples=("limits max_queue=2000", "limits key=3f9a12c44d01 concurrency=4"),
    ),
    AdminVerb(
        "reload",
        "read the fleet file again; a change is in force at once, or said to wait for a restart",
        examples=("reload  # says what is in force, and what waits for a restart",),
    ),
    AdminVerb(
        "help",
        "what the running router can be asked, with every argument",
        (Arg("verb", "only this verb"),),
        examples=("help limits",),
    ),
)
#: By name, in the order in which they are listed.
VERBS = {verb.name: verb for verb in _ALL}
