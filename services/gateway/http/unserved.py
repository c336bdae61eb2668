"""The routes that vLLM's server has and a gateway has not: each answers 501 with its name and why.

A client that finds "nothing here" looks for a typing error of its own; here it learns that there is
none. A test compares this table and the served routes with vLLM's own.
"""

from __future__ import annotations

from collections.abc import Iterator

_TEXT_ONLY = "the fleet serves text, vectors and scores by other routes"
_HALVES = "rendering and generating are not served apart; /tokenize renders a prompt"
_ENGINE = "it concerns a single engine; `baton ctl` has what an operator needs"
_WEIGHTS = "weights change with a rolling restart (`baton rollout`)"
_DOCUMENT = "/docs and /openapi.json describe the API"

_BY_REASON: dict[str, str] = {
    _TEXT_ONLY: """
        POST /v2/embed POST /generative_scoring POST /v1/systemone
        POST /v1/audio/transcriptions POST /v1/audio/translations GET /v1/realtime
        POST /v2/chat
    """,
    _HALVES: """
        POST /v1/chat/completions/render POST /v1/messages/render POST /v1/completions/render
        POST /v1/responses/render POST /v2/chat/render POST /v1/chat/completions/derender
        POST /v1/completions/derender POST /inference/v1/generate
        POST /inference/v1/abort_requests
    """,
    _ENGINE: """
        GET /kv_event_sources GET /tokenizer_info GET /server_info POST /scale_elastic_ep
        POST /is_scaling_elastic_ep POST /start_profile POST /stop_profile POST /sleep
        POST /wake_up GET /is_sleeping POST /release_kv_cache_memory POST /reset_prefix_cache
        POST /reset_mm_cache POST /reset_encoder_cache POST /collective_rpc POST /pause POST /resume
        GET /is_paused POST /abort_requests POST /fault_tolerance/apply GET /fault_tolerance/status
        GET /get_world_size
    """,
    _WEIGHTS: """
        POST /init_weight_transfer_engine POST /shutdown_weight_transfer_engine
        POST /start_weight_update POST /start_draft_weight_update POST /update_weights
        POST /finish_weight_update POST /update_weight_version GET /weight_info POST /weight_checker
    """,
    _DOCUMENT: "GET /redoc GET /docs/oauth2-redirect",
}


def unserved() -> Iterator[tuple[str, str, str]]:
    """Method, path and reason of each."""
    for reason, text in _BY_REASON.items():
        words = text.split()
        for method, path in zip(words[::2], words[1::2], strict=True):
            yield method, path, reason
