"""From the queue to the workers. Called by `core.py` only.

One pass looks at the window of the queue (`waiting.py`). What one request waits for, a larger one
waits for too, so a pass asks placement only about sizes that may still fit; the head is always
asked.
"""

from __future__ import annotations

from common import prefix
from common.errors import Code
from common.messages import PREFIX_DELTA_HASHES_MAX, Decode, Prefill, PrefixDelta, Ticket
from services.router import core_degradation, core_pairs, core_requests, placement
from services.router.admission import admit
from services.router.events import (
    Action,
    Note,
    PairsCleared,
    PolicyChosen,
    PromptsCleared,
    Send,
)
from services.router.placement_types import Known, Placement, WaitFor, WorkerView
from services.router.rates import rates
from services.router.records import Try, Worker
from services.router.state import TryState
from services.router.tables import Tables

NEVER = 1 << 62


def pump(tables: Tables, now: float) -> list[Action]:
    """Places what fits now. Passes repeat while they place something."""
    actions: list[Action] = []
    while len(tables.waiting):
        step = _pass(tables, now)
        if step is None:
            break
        actions += step
    return actions


def _pass(tables: Tables, now: float) -> list[Action] | None:
    """Places or refuses one; None when nothing in the window can move."""
    limit = tables.limits.max_active
    if limit and tables.active >= limit:
        tables.waiting.head().waits_for = WaitFor.SLOT
        return None
    decodes = tables.board.open_decodes()
    if not decodes:
        any_decode = tables.board.any_decode()
        tables.waiting.head().waits_for = WaitFor.SLOT if any_decode else WaitFor.WORKER
        return None
    prefills = tables.board.prefills()
    too_big = too_long = NEVER
    passed: list[Try] = []
    tables.wants_prefill = False
    for each in tables.waiting.window():
        if each.start_by and now >= each.start_by:
            return _too_late(tables, each, now)
        if each.ask.total_tokens >= too_big or each.ask.prompt_tokens >= too_long:
            passed.append(each)
            continue
        known = _known(tables, each, now, any_prefill=bool(prefills))
        others = [view for view in decodes if view.identity != each.avoid] if each.avoid else []
        choice = _place(tables, each, others or decodes, prefills, known)
        if isinstance(choice, Placement):
            for earlier in passed:
                earlier.passed_by += 1
            return _dispatch(tables, each, choice, now)
        each.waits_for = choice
        if choice is WaitFor.PREFILL:
            tables.wants_prefill = True
            too_long = min(too_long, each.ask.prompt_tokens // 8)
        else:
            if not tables.can_ever_hold(each.ask):
                sentence = core_requests.never_fits(each.ask)
                code = Code.CONTEXT_LENGTH_EXCEEDED
                return core_requests.refuse(tables, each, code, sentence, now)
            too_big = min(too_big, each.ask.total_tokens)
        passed.append(each)
    return None


def _place(
    tables: Tables, each: Try, decodes: list[WorkerView], prefills: list[WorkerView], known: Known
) -> Placement | WaitFor:
    """On workers that nobody has anything against, if these have room."""
    policy, doubtful = tables.placing.policy, tables.doubtful
    if doubtful:
        sound_d = [view for view in decodes if view.identity not in doubtful]
        sound_p = [view for view in prefills if view.identity not in doubtful]
        for those in (sound_p, prefills) if sound_p else (prefills,):
            choice = placement.place(each.ask, sound_d, those, policy, known)
            if isinstance(choice, Placement):
                return choice
    return placement.place(each.ask, decodes, prefills, policy, known)


def _known(tables: Tables, each: Try, now: float, *, any_prefill: bool) -> Known:
    placing = tables.placing
    blocks = placing.prefixes.match(each.ask.prefix) if each.ask.prefix else {}
    workers = tables.workers
    return Known(
        cached={name: n * workers[name].capacity.block_tokens for name, n in blocks.items()},
        rules=placing.rules,
        local=not any_prefill or placing.all_local or bool(each.ask.local_reason),
        rates=rates(tables.estimates, each),
        barred=placing.pairs.barred(now),
        was_remote=placing.was_remote(each.ask),
        probe=placing.probes(each.ask),
    )


def ordered(tables: Tables, event: PolicyChosen | PairsCleared | PromptsCleared) -> list[Action]:
    """By an operator, for what is placed from now on."""
    if isinstance(event, PromptsCleared):
        lifted = tables.poison.lift(event.digest)
        return [Note("info", "prompt.cleared", f"an operator lifted {lifted} prompts")]
    if isinstance(event, PairsCleared):
        return core_pairs.clear(tables, event)
    placing = tables.placing
    placing.choose(event.policy, event.remote_prefill)
    tables.freed = True
    sentence = (
        f"an operator chose: policy {placing.policy.NAME}, "
        f"remote prefill {placing.rules.remote_prefill}"
    )
    return [Note("info", "policy.chosen", sentence)]


def expire(tables: Tables, now: float) -> list[Action]:
    """Refuses what has waited past its deadline, and all when there is nobody to wait for."""
    actions: list[Action] = []
    for each in [e for e in tables.waiting if e.start_by and now >= e.start_by]:
        actions += _too_late(tables, each, now)
    if core_requests.lacks_decode(tables, now):
        sentence = "no decode worker became ready in time"
        actions += refuse_all(tables, Code.NO_CAPACITY, sentence, now)
    return actions


def refuse_all(tables: Tables, code: Code, sentence: str, now: float) -> list[Action]:
    actions: list[Action] = []
    for each in list(tables.waiting):
        actions += core_requests.refuse(tables, each, code, sentence, now)
    return actions


def _too_late(tables: Tables, each: Try, now: float) -> list[Action]:
    waited = (now - each.received) * 1000
    own = each.deadline and admit.limit_seconds(tables, each) == each.deadline - each.received
    what, code = ("deadline", Code.DEADLINE_EXCEEDED) if own else ("TTFT SLO", Code.OVERLOADED)
    sentence = f"its {what} cannot be met any more after {waited:.0f} ms in the queue"
    return core_requests.refuse(tables, each, code, sentence, now)


def _dispatch(tables: Tables, each: Try, choice: Placement, now: float) -> list[Action]:
    """Credits are taken, then the gateway, P and D hear of it at once, P and D with one ticket."""
    tables.waiting.serve(each)
    body, each.body = each.body, b""
    each.move(TryState.PLACED)
    each.placement, each.placed, each.waits_for = choice, now, None
    tables.active += 1
    tables.counts.placed += 1
    decode, prefill = choice.decode, choice.prefill
    tables.workers[decode.identity].hold(each.key, decode.kv_need(each.ask.total_tokens))
    serial = tables.placing.next_serial()
    tables.workers[decode.identity].given = serial
    _remember_prefix(tables, each, choice)
    remote = prefill is not None
    tables.placing.decided(each.ask, remote=remote, weighed=choice.weighed)
    core_degradation.placed(tables, each, choice, now)
    actions: list[Action] = [core_requests.placed_answer(each)]
    ticket = None
    if prefill is None:
        tables.counts.placed_local += 1
        tables.workers[decode.identity].queue(each.key, each.ask.prompt_tokens)
    else:
        worker = tables.workers[prefill.identity]
        worker.given = serial
        tables.placing.pairs.placed((prefill.identity, decode.identity), each.key, now)
        worker.hold(each.key, prefill.kv_need(each.ask.prompt_tokens))
        worker.queue(each.key, each.ask.prompt_tokens)
        each.prefill_open = True
        ticket = _ticket(tables, each, choice)
        order = Prefill(request_id=each.request_id, attempt=each.attempt, ticket=ticket)
        actions.append(Send(prefill.identity, order, body))
    gateway = tables.gateways[each.gateway]
    stream = Decode(
        request_id=each.request_id,
        attempt=each.attempt,
        gateway=gateway.name,
        gateway_incarnation=gateway.incarnation,
        stream_endpoint=gateway.stream_endpoint,
        ticket=ticket,
    )
    actions.append(Send(decode.identity, stream, body))
    fields: dict[str, object] = {"request_id": each.request_id, "attempt": each.attempt}
    actions.append(Note("debug", "request.placed", choice.sentence, fields))
    return actions


def _remember_prefix(tables: Tables, each: Try, choice: Placement) -> None:
    """Both will hold the prompt's KV, so what comes with the same prefix next is placed by it."""
    hashes = each.ask.prefix
    for view in (choice.decode, choice.prefill):
        if view is not None and hashes:
            limit = tables.workers[view.identity].capacity.kv_blocks
            tables.placing.prefixes.add(view.identity, hashes, limit)
    each.forget_prefix()


def prefixes_changed(tables: Tables, worker: Worker, message: PrefixDelta) -> None:
    """The worker's engine has told."""
    prefixes, limit = tables.placing.prefixes, worker.capacity.kv_blocks
    if message.cleared:
        prefixes.clear(worker.identity)
    prefixes.remove(worker.identity, prefix.split(message.removed)[:PREFIX_DELTA_HASHES_MAX])
    stored = prefix.split(message.stored)[:PREFIX_DELTA_HASHES_MAX]
    if stored:
        prefixes.add(worker.identity, stored, limit)


def _ticket(tables: Tables, each: Try, choice: Placement) -> Ticket:
    decode, prefill = choice.decode, choice.prefill
    assert prefill is not None
    return Ticket(
        secret=tables.secrets(),
        request_id=each.request_id,
        attempt=each.attempt,
        fingerprint=prefill.fingerprint,
        prefill=prefill.name,
        prefill_incarnation=prefill.incarnation,
        decode=decode.name,
        decode_incarnation=decode.incarnation,
        kv_address=prefill.kv_address,
        lease_ms=tables.settings.lease_ms,
    )
