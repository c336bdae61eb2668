"""The two kinds of generation request, and what a checked one is."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from common.messages import Sampling


class Kind(enum.Enum):
    """Value: the prefix of the response id."""

    CHAT = "chatcmpl"
    COMPLETION = "cmpl"


@dataclass(frozen=True, slots=True)
class Call:
    """One checked, tokenized request. `request_id` is unique in the fleet; `created`: unix seconds;
    `deadline_ms`: remaining time in which the first token is wanted, 0 = none. `session`: the
    client's x-session-id."""

    kind: Kind
    request_id: str
    model: str
    created: int
    prompt_ids: list[int]
    sampling: Sampling
    deadline_ms: float = 0.0
    stops: tuple[str, ...] = ()
    include_stop: bool = False
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    return_token_ids: bool = False
    session: str = ""

    @property
    def response_id(self) -> str:
        return f"{self.kind.value}-{self.request_id}"
