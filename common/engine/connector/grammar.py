"""Continues a grammar where an earlier attempt left it.

vLLM begins each request at the start of its grammar. A request that continues here states how many
of its last prompt tokens are output. The grammar is given these once it is compiled, before vLLM
schedules the request. A grammar that refuses them fails the request like one that does not compile.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from common.engine.vllm.sampling import RESUME_KEY

if TYPE_CHECKING:
    from vllm.v1.request import Request


def replay_emitted(request: Request) -> None:
    """Replays the emitted tokens of a new request, before it is scheduled. While the compilation
    runs in a thread of vLLM's, the tokens are taken there when it ends."""
    structured, params = request.structured_output_request, request.sampling_params
    state = (params.extra_args or {}).get(RESUME_KEY) if params is not None else None
    if structured is None or state is None or not state["emitted"]:
        return
    emitted = request.prompt_token_ids[-state["emitted"] :]
    compiled, ready = structured._grammar, Future[Any]()  # noqa: SLF001 - no other way to the future
    structured.grammar = ready
    compiled.add_done_callback(lambda done: _replay(done, ready, request.request_id, emitted))


def _replay(compiled: Future[Any], ready: Future[Any], request_id: str, emitted: list[int]) -> None:
    try:
        grammar = compiled.result()
        if not grammar.accept_tokens(request_id, emitted):
            raise ValueError(f"the grammar refuses what an earlier attempt made: {request_id}")
    except Exception as error:  # noqa: BLE001 - raised in whoever waits for the grammar
        ready.set_exception(error)
    else:
        ready.set_result(grammar)
