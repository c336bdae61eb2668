"""The two kinds of generation request, and what a checked one is."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from common.messages import PriorityClass, Sampling
from services.gateway.streams.timing import Timing


class Kind(enum.Enum):
    """Value: the prefix of the response id."""

    CHAT = "chatcmpl"
    COMPLETION = "cmpl"


def priority_class(priority: int) -> PriorityClass | None:
    """Of a request's `priority`, which is vLLM's: 0 by default, a lower one is served earlier."""
    if priority == 0:
        return None
    return PriorityClass.INTERACTIVE if priority < 0 else PriorityClass.BATCH


@dataclass(frozen=True, slots=True)
class Call:
    """One checked, tokenized request. `request_id` is unique in the fleet; `created`: unix seconds;
    `deadline_ms`: remaining time in which the first token is wanted, 0 = none. `session`: the
    client's x-session-id. `local_reason`: why D must compute the prompt itself, empty = it need
    not. `priority`: the class that the client wants, None = its key's. `timing`: of the HTTP
    request that it is for; `timings`: the client wants to see it in the answer. `traceparent`: the
    client's, empty when it gave none."""

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
    local_reason: str = ""
    priority: PriorityClass | None = None
    timing: Timing = field(default_factory=Timing, compare=False)
    timings: bool = False
    traceparent: str = ""

    @property
    def response_id(self) -> str:
        return f"{self.kind.value}-{self.request_id}"
