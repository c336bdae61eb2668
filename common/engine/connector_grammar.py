"""A grammar goes on where an earlier attempt left it.

vLLM begins each request at its grammar's start. A request that goes on here says how many of its
last prompt tokens are output; they are given to the grammar once it is compiled, before vLLM
schedules the request. A grammar that refuses them fails the request, as one that does not compile.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from common.engine.vllm_sampling import OWN_KEY

if TYPE_CHECKING:
    from vllm.v1.request import Request


def replay_emitted(request: Request) -> None:
    """Of a new request, before it is scheduled. The compilation may still run in a thread of
    vLLM's, and the tokens are then taken there."""
    structured, params = request.structured_output_request, request.sampling_params
    own = (params.extra_args or {}).get(OWN_KEY) if params is not None else None
    if structured is None or own is None or not own["emitted"]:
        return
    emitted = request.prompt_token_ids[-own["emitted"] :]
    compiled, ready = structured._grammar, Future[Any]()  # noqa: SLF001 - no other way to the future
    structured.grammar = ready
    compiled.add_done_callback(lambda done: _replay(done, ready, request.request_id, emitted))


def _replay(compiled: Future[Any], ready: Future[Any], request_id: str, emitted: list[int]) -> None:
    try:
        grammar = compiled.result()
        if not grammar.accept_tokens(request_id, emitted):
            raise ValueError(f"the grammar refuses what an earlier attempt made: {request_id}")
    except Exception as error:  # noqa: BLE001 - whoever waits for the grammar hears of it
        ready.set_exception(error)
    else:
        ready.set_result(grammar)
