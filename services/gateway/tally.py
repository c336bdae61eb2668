"""What a gateway measures of its requests: times, tokens, ends, and who used how much."""

from __future__ import annotations

from dataclasses import dataclass

from common.buckets import ITL_SECONDS, REQUEST_SECONDS, TTFT_SECONDS, Buckets
from common.messages import Journey

KEYS_MAX = 200
OTHERS = "other"


@dataclass(slots=True)
class Used:
    """Tokens. `cached`: those of `input` whose KV was there already."""

    input: int = 0
    cached: int = 0
    output: int = 0


class Tally:
    """`by_key`: at most `KEYS_MAX` keys by public id, the empty one for anonymous callers; further
    ones share one row, so that keys cannot grow a scrape without bound. `ends`: by outcome and
    code."""

    def __init__(self, keys_max: int = KEYS_MAX) -> None:
        self.ttft = Buckets(TTFT_SECONDS)
        self.itl = Buckets(ITL_SECONDS)
        self.whole = Buckets(REQUEST_SECONDS)
        self.ends: dict[tuple[str, str], int] = {}
        self.by_key: dict[str, Used] = {}
        self.moves: dict[str, int] = {"resumed": 0, "failed": 0}
        self._keys_max = keys_max

    def left(self, journey: Journey, key_id: str) -> None:
        """A request is over."""
        end = (journey.outcome, journey.code)
        self.ends[end] = self.ends.get(end, 0) + 1
        self.whole.observe(sum(leg.ms for leg in journey.legs) / 1000)
        if journey.ttft_ms:
            self.ttft.observe(journey.ttft_ms / 1000)
        if journey.attempt > 1:
            self.moves["resumed" if journey.outcome == "ended" else "failed"] += 1
        if key_id not in self.by_key and len(self.by_key) >= self._keys_max:
            key_id = OTHERS
        used = self.by_key.setdefault(key_id, Used())
        used.output += journey.completion_tokens
        if journey.ttft_ms:
            used.input += journey.prompt_tokens
            used.cached += min(journey.cached_tokens, journey.prompt_tokens)
