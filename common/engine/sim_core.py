"""The simulated engine's scheduler: what runs, what waits, whose the blocks are, a step's length.

Theory of operation: continuous batching as vLLM does it, without its preemption: a request is
admitted in arrival order when all blocks that it can ever need are free, so admission never
deadlocks. A step prefills up to the token budget, in order, and decodes one token for everyone
else. P's blocks stay after the request ended, until the handoff did. No clock: `step_seconds` says
how long the step that was just planned takes, the shell waits, then `finish_step` gives its
outputs.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field

from common.config import SimConfig
from common.engine.port import EngineRequest, Output
from common.engine.sim_model import SimKv, SimText
from common.errors import Code
from common.messages import FinishReason, Role


class Phase(enum.Enum):
    WAITING = "waiting"
    FETCHING = "fetching"
    PREFILL = "prefill"
    DECODE = "decode"
    PINNED = "pinned"


@dataclass(slots=True)
class SimRequest:
    """`computed`: prompt tokens that hold KV here; `emitted`: tokens made."""

    request: EngineRequest
    phase: Phase = Phase.WAITING
    blocks: list[int] = field(default_factory=list)
    computed: int = 0
    cached: int = 0
    emitted: int = 0
    text: SimText | None = None
    dropped: bool = False

    @property
    def sends(self) -> bool:
        return self.request.role is Role.PREFILL and self.request.ticket is not None


class SimCore:
    """`prefilled` of a step lists requests on P whose KV grew: the shell tells the KV thread."""

    def __init__(
        self, timing: SimConfig, kv: SimKv, block_tokens: int, max_seqs: int, max_tokens: int
    ) -> None:
        self._timing = timing
        self._kv = kv
        self._block_tokens = block_tokens
        self._max_seqs = max_seqs
        self._max_tokens = max_tokens
        self._total = kv.memory.geometry.blocks
        self._free = list(range(self._total - 1, -1, -1))
        self._requests: dict[str, SimRequest] = {}
        self._waiting: deque[str] = deque()
        self._planned: list[tuple[str, int]] = []

    # ------------------------------------------------------------ what comes in

    def add(self, request: EngineRequest) -> None:
        self._requests[request.key] = SimRequest(request)
        self._waiting.append(request.key)

    def get(self, key: str) -> SimRequest | None:
        return self._requests.get(key)

    def abort(self, key: str) -> bool:
        """True: blocks are in a handoff and are freed by `handoff_ended`."""
        held = self._requests.get(key)
        if held is None:
            return False
        held.dropped = True
        if held.phase is Phase.FETCHING or (held.sends and held.phase is not Phase.WAITING):
            return True
        self._remove(key)
        return False

    def handoff_ended(self, key: str, *, failed: bool) -> None:
        """The KV thread is done with this request's blocks."""
        held = self._requests.get(key)
        if held is None:
            return
        if held.phase is Phase.PINNED or held.dropped:
            self._remove(key)
        elif held.phase is Phase.FETCHING:
            prompt = held.request.prompt_ids
            held.computed = 0 if failed else len(prompt) - 1
            held.cached = held.computed
            held.phase = Phase.PREFILL
        else:
            held.request = _without_ticket(held.request)

    # ------------------------------------------------------------ steps

    def admit(self) -> list[SimRequest]:
        """Moves what fits from the queue to work; returns those that have just begun."""
        begun: list[SimRequest] = []
        while self._waiting and self._active() < self._max_seqs:
            held = self._requests[self._waiting[0]]
            needed = self.blocks_needed(held.request)
            if needed > len(self._free):
                break
            self._waiting.popleft()
            held.blocks = [self._free.pop() for _ in range(needed)]
            fetches = held.request.role is Role.DECODE and held.request.ticket is not None
            held.phase = (
                Phase.FETCHING if fetches and len(held.request.prompt_ids) > 1 else Phase.PREFILL
            )
            begun.append(held)
        return begun

    def plan_step(self) -> bool:
        """Chooses the next step's work; False when there is none."""
        budget = self._max_tokens
        self._planned = []
        for key, held in self._requests.items():
            if held.dropped:
                continue
            if held.phase is Phase.DECODE:
                self._planned.append((key, 0))
            elif held.phase is Phase.PREFILL and budget > 0:
                tokens = min(budget, len(held.request.prompt_ids) - held.computed)
                budget -= tokens
                self._planned.append((key, tokens))
        return bool(self._planned)

    def step_seconds(self) -> float:
        prefill = sum(tokens for _, tokens in self._planned)
        decodes = sum(1 for _, tokens in self._planned if tokens == 0)
        timing = self._timing
        seconds = prefill / timing.prefill_tokens_per_s
        if decodes:
            milliseconds = timing.decode_step_ms + timing.decode_step_ms_per_seq * decodes
            seconds += milliseconds / 1000
        return seconds

    def finish_step(self) -> tuple[list[Output], list[SimRequest]]:
        """(outputs, requests on P whose KV grew)."""
        outputs: list[Output] = []
        grown: list[SimRequest] = []
        for key, tokens in self._planned:
            held = self._requests.get(key)
            if held is None or held.dropped:
                continue
            if held.phase is Phase.PREFILL:
                self._prefill(held, tokens)
                if held.sends:
                    grown.append(held)
                if held.computed < len(held.request.prompt_ids):
                    continue
                self._prefilled(held)
                if held.request.role is Role.PREFILL:
                    outputs.append(self._handed(key, held))
                    continue
            outputs.append(self._decode(key, held))
        self._planned = []
        return outputs, grown

    def blocks_needed(self, request: EngineRequest) -> int:
        tokens = len(request.prompt_ids)
        if request.role is Role.DECODE:
            tokens += request.sampling.max_tokens
        return -(-tokens // self._block_tokens)

    def prompt_blocks(self, request: EngineRequest) -> int:
        return -(-len(request.prompt_ids) // self._block_tokens)

    def computed_blocks(self, held: SimRequest) -> int:
        if held.computed >= len(held.request.prompt_ids):
            return self.prompt_blocks(held.request)
        return held.computed // self._block_tokens

    @property
    def running(self) -> int:
        return self._active()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def kv_used(self) -> float:
        return (self._total - len(self._free)) / self._total

    def check_invariants(self) -> None:
        owned = [block for held in self._requests.values() for block in held.blocks]
        if len(owned) + len(self._free) != self._total or len(set(owned)) != len(owned):
            raise AssertionError("blocks were lost or are owned twice")

    # ------------------------------------------------------------ inside

    def _active(self) -> int:
        idle = (Phase.WAITING, Phase.PINNED)
        return sum(1 for held in self._requests.values() if held.phase not in idle)

    def _prefill(self, held: SimRequest, tokens: int) -> None:
        prompt = held.request.prompt_ids
        received = -(-held.cached // self._block_tokens)
        first = max(received, held.computed // self._block_tokens)
        held.computed += tokens
        self._kv.compute(prompt, held.blocks, first, self.computed_blocks(held))

    def _prefilled(self, held: SimRequest) -> None:
        held.phase = Phase.DECODE
        if held.request.role is Role.DECODE:
            prompt = held.request.prompt_ids
            remote = held.blocks[: -(-held.cached // self._block_tokens)]
            damage = self._kv.damage(prompt, remote)
            held.text = SimText(prompt, held.request.sampling.seed, damage)

    def _handed(self, key: str, held: SimRequest) -> Output:
        held.phase = Phase.PINNED
        if not held.sends:
            self._remove(key)
        return Output(key=key, token_ids=[], finish_reason=FinishReason.LENGTH)

    def _decode(self, key: str, held: SimRequest) -> Output:
        text = held.text
        if text is None:
            return Output(key=key, token_ids=[], error=Code.INTERNAL, message="no text to go on")
        sampling = held.request.sampling
        token = text.next_token()
        first = held.emitted == 0
        held.emitted += 1
        finish, stop_token = "", -1
        if token in sampling.stop_token_ids and held.emitted > sampling.min_tokens:
            finish, stop_token = FinishReason.STOP, token
        elif held.emitted >= sampling.max_tokens:
            finish = FinishReason.LENGTH
        if finish:
            self._remove(key)
        cached = held.cached if first else 0
        return Output(key, [token], finish, stop_token, cached)

    def _remove(self, key: str) -> None:
        held = self._requests.pop(key)
        if held.phase is Phase.WAITING:
            self._waiting.remove(key)
        self._free.extend(reversed(held.blocks))


def _without_ticket(request: EngineRequest) -> EngineRequest:
    """P's handoff ended before its prefill did: nothing is pinned at the end."""
    return EngineRequest(
        request.request_id,
        request.attempt,
        request.role,
        request.prompt_ids,
        request.sampling,
        None,
        request.cache_salt,
    )
