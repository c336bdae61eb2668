"""The POST routes of the HTTP API."""

from __future__ import annotations

import enum

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

    @property
    def is_anthropic(self) -> bool:
        """Whether errors and events have Anthropic's shapes."""
        return self in (Route.MESSAGES, Route.COUNT_TOKENS)


ROUTE_OF: dict[Kind, Route] = {Kind.CHAT: Route.CHAT, Kind.COMPLETION: Route.COMPLETION}
