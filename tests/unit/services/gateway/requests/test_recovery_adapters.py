"""A request keeps its LoRA adapter: in each attempt, in its names, and when a worker lacks it."""

from __future__ import annotations

from common.messages import Delta, Failed, Fleet, RequestBody, ServedAdapter, Submit
from common.prefix import HASH_BYTES
from services.gateway.requests.events import Action, FromRouter, Stepped, ToRouter
from tests.unit.services.gateway.gate import D0, Gate

SQL = "sql@1"
THERE = Fleet(
    ready=True,
    prefill_ready=1,
    decode_ready=2,
    max_model_len=99,
    block_tokens=1,
    adapters=(ServedAdapter(SQL, "/sql"),),
)


def submitted(actions: list[Action]) -> tuple[Submit, RequestBody]:
    (sent,) = [a for a in actions if isinstance(a, ToRouter) and isinstance(a.message, Submit)]
    assert isinstance(sent.message, Submit)
    assert sent.body is not None
    return sent.message, sent.body


def begun(adapter: str = SQL) -> tuple[Gate, Submit]:
    gate = Gate(recovery=True)
    gate.do(FromRouter(THERE))
    submit, body = submitted(gate.open(adapter=adapter))
    assert submit.adapter == body.adapter == adapter
    gate.place()
    return gate, submit


def test_every_attempt_has_it_and_prompts_are_told_apart_by_it() -> None:
    gate, first = begun()
    gate.token("ab")
    failed = Failed(request_id="r", attempt=1, code="worker_lost", message="d0 was lost")
    second, body = submitted(gate.do(FromRouter(failed)))
    assert second.adapter == body.adapter == SQL
    assert first.prompt_digest == second.prompt_digest
    assert second.prefix_hashes.startswith(first.prefix_hashes)
    _, plain = begun("")
    assert len(first.prefix_hashes) == len(plain.prefix_hashes) == 2 * HASH_BYTES
    assert first.prefix_hashes != plain.prefix_hashes
    assert first.prompt_digest != plain.prompt_digest


def test_a_worker_that_lacks_it_is_left_for_another() -> None:
    gate, _ = begun()
    delta = Delta("r", 1, 0, [], error="adapter_not_held", message="its files changed")
    submit, _ = submitted(gate.do(Stepped(D0, [delta])))
    assert (submit.attempt, submit.adapter) == (2, SQL)


def test_a_restarted_router_does_not_make_it_unknown() -> None:
    gate, _ = begun()
    gate.do(FromRouter(Fleet(ready=False, prefill_ready=0, decode_ready=0, max_model_len=0)))
    fleet = gate.core.fleet_of("m")
    assert fleet is not None
    assert fleet.adapters == THERE.adapters
