"""The POST routes of the HTTP API."""

from __future__ import annotations

import enum

from common.errors import BatonError, Code
from services.gateway.api.kinds import Kind


class Route(enum.Enum):
    """Value: the path."""

    CHAT = "/v1/chat/completions"
    BATCH = "/v1/chat/completions/batch"
    COMPLETION = "/v1/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"
    COUNT_TOKENS = "/v1/messages/count_tokens"
    TOKENIZE = "/tokenize"
    DETOKENIZE = "/detokenize"
    EMBEDDINGS = "/v1/embeddings"
    RERANK = "/v1/rerank"
    RERANK_BARE = "/rerank"
    RERANK_V2 = "/v2/rerank"
    SCORE = "/v1/score"
    SCORE_BARE = "/score"
    CLASSIFY = "/classify"
    POOLING = "/pooling"

    @property
    def is_anthropic(self) -> bool:
        """Whether errors and events have Anthropic's shapes."""
        return self in (Route.MESSAGES, Route.COUNT_TOKENS)


RERANKS = (Route.RERANK, Route.RERANK_BARE, Route.RERANK_V2)
SCORES = (Route.SCORE, Route.SCORE_BARE)
#: Of pooling models alone.
POOLED = (Route.EMBEDDINGS, Route.CLASSIFY, Route.POOLING, *RERANKS, *SCORES)
_OF_TEXT = (Route.TOKENIZE, Route.DETOKENIZE)
#: The routes of a pooling model, by what it is for; all others are of models that generate.
POOLING_ROUTES: dict[str, tuple[Route, ...]] = {
    "embed": (Route.EMBEDDINGS, *SCORES, *RERANKS, Route.POOLING, *_OF_TEXT),
    "rerank": (*RERANKS, *SCORES, Route.CLASSIFY, Route.POOLING, *_OF_TEXT),
    "classify": (Route.CLASSIFY, Route.POOLING, *_OF_TEXT),
}


def check_task(model: str, task: str, route: Route) -> None:
    """Raises BatonError(INVALID_REQUEST) for a route that this model does not have. `task`: as the
    fleet file has it."""
    pooling = POOLING_ROUTES.get(task)
    if route in POOLED if pooling is None else route not in pooling:
        named = pooling or (Route.CHAT, Route.COMPLETION)
        sentence = (
            f"the model {model!r} (task {task!r}) is not served by {route.value}; "
            f"ask it by {', '.join(one.value for one in named)}"
        )
        raise BatonError(Code.INVALID_REQUEST, sentence, param="model")


ROUTE_OF: dict[Kind, Route] = {Kind.CHAT: Route.CHAT, Kind.COMPLETION: Route.COMPLETION}
