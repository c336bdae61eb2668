"""What a gateway has counted and measured since its start."""

from __future__ import annotations

from dataclasses import dataclass

from common.messages import PriorityClass, RequestSummary
from common.telemetry.buckets import ITL_SECONDS, REQUEST_SECONDS, TTFT_SECONDS, Buckets

KEYS_MAX = 200
OTHER_KEYS = "other"
FIELDS_MAX = 100
OTHER_FIELDS = "other"


@dataclass(slots=True)
class KeyUsage:
    """Tokens of the requests of one API key for one model."""

    #: Prompt tokens of requests that had a first token.
    input: int = 0
    #: Those of `input` whose KV was computed before their request.
    cached: int = 0
    #: Tokens made.
    output: int = 0


class ModelCounters:
    """The requests for one model."""

    def __init__(self) -> None:
        #: From a request's head to its first token, in seconds.
        self.ttft = Buckets(TTFT_SECONDS)
        #: Between two messages with tokens of one stream, in seconds.
        self.itl = Buckets(ITL_SECONDS)
        #: From a request's head to its end, in seconds.
        self.request_time = Buckets(REQUEST_SECONDS)
        #: Requests that are over, by outcome and error code.
        self.ends: dict[tuple[str, str], int] = {}
        #: Requests that had more than one attempt, by how they ended.
        self.migrations = {"resumed": 0, "failed": 0}
        #: By the public id of the key, empty for anonymous callers. Keys after the first `keys_max`
        #: share the row `OTHER_KEYS`, so that keys cannot grow a scrape without bound.
        self.by_key: dict[str, KeyUsage] = {}
        #: Tokens of the streams of each class that are over, and the messages that brought them.
        self.by_class: dict[PriorityClass, tuple[int, int]] = {}

    def stream_over(self, priority: PriorityClass, tokens: int, messages: int) -> None:
        before = self.by_class.get(priority, (0, 0))
        self.by_class[priority] = before[0] + tokens, before[1] + messages

    def request_over(self, summary: RequestSummary, key_id: str, keys_max: int) -> None:
        end = (summary.outcome, summary.code)
        self.ends[end] = self.ends.get(end, 0) + 1
        self.request_time.observe(sum(leg.ms for leg in summary.legs) / 1000)
        if summary.ttft_ms:
            self.ttft.observe(summary.ttft_ms / 1000)
        if summary.attempt > 1:
            self.migrations["resumed" if summary.outcome == "ended" else "failed"] += 1
        if key_id not in self.by_key and len(self.by_key) >= keys_max:
            key_id = OTHER_KEYS
        usage = self.by_key.setdefault(key_id, KeyUsage())
        usage.output += summary.completion_tokens
        if summary.ttft_ms:
            usage.input += summary.prompt_tokens
            usage.cached += min(summary.cached_tokens, summary.prompt_tokens)


class Counters:
    """All requests since the start of the process. `keys_max`: rows of API keys of each model."""

    def __init__(self, keys_max: int = KEYS_MAX) -> None:
        #: Requests that came into the table.
        self.opened = 0
        #: Requests whose answer is complete.
        self.ended = 0
        #: Requests that were answered with an error.
        self.failed = 0
        #: Requests whose client left.
        self.closed = 0
        #: Attempts that went on as another attempt.
        self.recovered = 0
        #: Deltas that were dropped for their attempt, index or sender.
        self.stale = 0
        #: Deltas that were dropped because no live request has their id.
        self.unknown = 0
        #: By the name of the model, which the fleet file has: no client can add one.
        self.models: dict[str, ModelCounters] = {}
        #: Requests with a field that was ignored, by its name. Clients choose names, so that
        #: those after the first `FIELDS_MAX` share the row `OTHER_FIELDS`.
        self.ignored_fields: dict[str, int] = {}
        self._keys_max = keys_max

    def field_ignored(self, name: str) -> None:
        counted = self.ignored_fields
        if name not in counted and len(counted) >= FIELDS_MAX:
            name = OTHER_FIELDS
        counted[name] = counted.get(name, 0) + 1

    def of_model(self, model: str) -> ModelCounters:
        counted = self.models.get(model)
        if counted is None:
            counted = self.models[model] = ModelCounters()
        return counted

    def request_over(self, model: str, summary: RequestSummary, key_id: str) -> None:
        self.of_model(model).request_over(summary, key_id, self._keys_max)
