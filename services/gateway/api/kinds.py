"""The two kinds of generation, and a request for one that has passed all checks."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from common.messages import ImageFeatures, Pooling, PriorityClass, Sampling
from common.model.adapters import name_of_adapter
from services.gateway.streams.phase_timer import PhaseTimer


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
class RequestSpec:
    """One checked, tokenized request for tokens. An HTTP request makes one, or several for `n`
    choices."""

    kind: Kind
    #: Unique in the fleet.
    request_id: str
    #: The served name.
    model: str
    #: Unix seconds.
    created: int
    prompt_ids: list[int]
    sampling: Sampling
    #: Remaining time in which the first token is wanted; 0: none was given.
    deadline_ms: float = 0.0
    #: Stop strings, each once.
    stops: tuple[str, ...] = ()
    #: The text of the stop string is shown.
    include_stop: bool = False
    #: The answer is a stream of events.
    stream: bool = False
    #: The stream ends with an event that has the usage.
    include_usage: bool = False
    #: Every event has the usage so far.
    continuous_usage: bool = False
    #: The answer has the ids of prompt and completion, as vLLM's has.
    return_token_ids: bool = False
    #: The client's x-session-id, or what its body says instead; empty: none.
    session: str = ""
    #: Keeps its cached prompts apart from those of other salts; empty: none was given.
    cache_salt: str = ""
    #: Images of the prompt, by their offsets.
    images: tuple[ImageFeatures, ...] = field(default=(), repr=False)
    #: Why D must compute the prompt itself; empty: it need not.
    local_reason: str = ""
    #: The class that the client wants; None: its key's.
    priority: PriorityClass | None = None
    #: Of its HTTP request; None: the core starts one.
    timer: PhaseTimer | None = field(default=None, compare=False)
    #: The client wants to see the phases in the answer.
    timings: bool = False
    #: The client's, checked; empty: none was given.
    traceparent: str = ""
    #: A client reads its answer when it is opened.
    attended: bool = True
    #: Id of the LoRA adapter that is asked for; empty: none.
    adapter: str = ""
    #: What a pooling model computes of the prompt; None: tokens are generated.
    pooling: Pooling | None = None

    @property
    def asked_as(self) -> str:
        """The model, or the adapter, as the answer repeats it."""
        return name_of_adapter(self.adapter) or self.model

    @property
    def response_id(self) -> str:
        return f"{self.kind.value}-{self.request_id}"
