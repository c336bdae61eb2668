"""The scheduler of the simulated engine: batches, blocks and the length of a step.

Theory of operation: it models vLLM's continuous batching without preemption. Requests are admitted
in order of arrival, each when all blocks that it can ever need are free, so admission never
deadlocks. A step prefills prompts in order up to the token budget and decodes one token for each
other request, or several with `[speculation]`: as many as the text itself decides. P's blocks stay
after the request ended, until its handoff ends. There is no clock: `step_seconds` returns the
length of the step that was just planned, the shell waits, and `finish_step` returns its outputs.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field, replace

from common.blocks import blocks_for
from common.config import SimConfig
from common.engine.port import Drafts, EngineRequest, Output
from common.engine.sim.model import SimKv, SimText, pooled_numbers
from common.errors import Code
from common.messages import FinishReason, Role


class Phase(enum.Enum):
    """Where a request is in the engine."""

    #: In the queue, without blocks.
    WAITING = "waiting"
    #: On D, its blocks are filled by a handoff.
    FETCHING = "fetching"
    #: Its prompt is computed, or the rest of it.
    PREFILL = "prefill"
    DECODE = "decode"
    #: It is computed, or was given up on D, and its blocks wait for the end of the handoff.
    PINNED = "pinned"


@dataclass(slots=True)
class SimRequest:
    """One request in the engine."""

    request: EngineRequest
    phase: Phase = Phase.WAITING
    #: Its blocks, in the order of the prompt.
    blocks: list[int] = field(default_factory=list)
    #: Prompt tokens whose KV is here.
    computed: int = 0
    #: Those of `computed` that a handoff brought.
    cached: int = 0
    #: Tokens generated.
    emitted: int = 0
    #: The generated text, from the end of the prefill on.
    text: SimText | None = None
    #: Whether it was aborted and only its blocks remain.
    dropped: bool = False

    @property
    def sends(self) -> bool:
        """Whether its KV is handed over from here."""
        return self.request.role is Role.PREFILL and self.request.ticket is not None


class SimCore:
    """The state of the engine. The shell tells the KV thread which requests on P have more KV."""

    def __init__(
        self,
        timing: SimConfig,
        kv: SimKv,
        block_tokens: int,
        max_seqs: int,
        max_tokens: int,
        *,
        draft_tokens: int = 0,
    ) -> None:
        """`draft_tokens`: of each draft; 0: nothing is drafted."""
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
        self._drafted = [0] * draft_tokens
        self._accepted = [0] * draft_tokens

    # ------------------------------------------------------------ what comes in

    def add(self, request: EngineRequest) -> None:
        self._requests[request.key] = SimRequest(request)
        self._waiting.append(request.key)

    def get(self, key: str) -> SimRequest | None:
        return self._requests.get(key)

    def abort(self, key: str) -> bool:
        """True if its blocks are in a handoff, in which case `handoff_ended` frees them."""
        sim_request = self._requests.get(key)
        if sim_request is None:
            return False
        sim_request.dropped = True
        if sim_request.phase is Phase.FETCHING or (
            sim_request.sends and sim_request.phase is not Phase.WAITING
        ):
            return True
        self._remove(key)
        return False

    def keep(self, key: str) -> list[int] | None:
        """Ends a stream and returns the blocks that hold the KV of its tokens but the last;
        `handoff_ended` frees them. None if there is no such stream any more."""
        sim_request = self._requests.get(key)
        if sim_request is None or sim_request.phase is not Phase.DECODE or not sim_request.emitted:
            return None
        prompt, sampling = sim_request.request.prompt_ids, sim_request.request.sampling
        text = SimText(prompt, sampling.seed, 0, sim_request.request.adapter)
        sequence = [*prompt, *(text.next_token() for _ in range(sim_request.emitted))]
        end = blocks_for(len(sequence) - 1, self._block_tokens)
        first = len(prompt) // self._block_tokens
        self._kv.compute(sequence, sim_request.blocks, first, end, sim_request.request.adapter)
        sim_request.dropped, sim_request.phase = True, Phase.PINNED
        return sim_request.blocks[:end]

    def handoff_ended(self, key: str, *, failed: bool) -> None:
        """The KV thread no longer needs the blocks of this request."""
        sim_request = self._requests.get(key)
        if sim_request is None:
            return
        if sim_request.phase is Phase.PINNED or sim_request.dropped:
            self._remove(key)
        elif sim_request.phase is Phase.FETCHING:
            prompt = sim_request.request.prompt_ids
            sim_request.computed = 0 if failed else len(prompt) - 1
            sim_request.cached = sim_request.computed
            sim_request.phase = Phase.PREFILL
        else:
            # The handoff ended before the prefill: no blocks are kept at the end.
            sim_request.request = replace(sim_request.request, ticket=None)

    # ------------------------------------------------------------ steps

    def admit(self) -> list[SimRequest]:
        """Moves requests that fit from the queue into work, and returns them."""
        begun: list[SimRequest] = []
        while self._waiting and self._active() < self._max_seqs:
            sim_request = self._requests[self._waiting[0]]
            needed = self.blocks_needed(sim_request.request)
            if needed > len(self._free):
                break
            self._waiting.popleft()
            sim_request.blocks = [self._free.pop() for _ in range(needed)]
            fetches = (
                sim_request.request.role is Role.DECODE and sim_request.request.ticket is not None
            )
            sim_request.phase = (
                Phase.FETCHING
                if fetches and len(sim_request.request.prompt_ids) > 1
                else Phase.PREFILL
            )
            begun.append(sim_request)
        return begun

    def plan_step(self) -> bool:
        """Chooses the work of the next step. False if there is none."""
        budget = self._max_tokens
        self._planned = []
        for key, sim_request in self._requests.items():
            if sim_request.dropped:
                continue
            if sim_request.phase is Phase.DECODE:
                self._planned.append((key, 0))
            elif sim_request.phase is Phase.PREFILL and budget > 0:
                tokens = min(budget, len(sim_request.request.prompt_ids) - sim_request.computed)
                budget -= tokens
                self._planned.append((key, tokens))
        return bool(self._planned)

    def step_seconds(self) -> float:
        """The length of the planned step."""
        prefill = sum(tokens for _, tokens in self._planned)
        decodes = sum(1 for _, tokens in self._planned if tokens == 0)
        timing = self._timing
        seconds = prefill / timing.prefill_tokens_per_s
        if decodes:
            milliseconds = timing.decode_step_ms + timing.decode_step_ms_per_seq * decodes
            seconds += milliseconds / 1000
        return seconds

    def finish_step(self) -> tuple[list[Output], list[SimRequest]]:
        """Carries out the planned step. Returns its outputs, and the requests on P that have more
        KV."""
        outputs: list[Output] = []
        grown: list[SimRequest] = []
        for key, tokens in self._planned:
            sim_request = self._requests.get(key)
            if sim_request is None or sim_request.dropped:
                continue
            if sim_request.phase is Phase.PREFILL:
                self._prefill(sim_request, tokens)
                if sim_request.sends:
                    grown.append(sim_request)
                if sim_request.computed < len(sim_request.request.prompt_ids):
                    continue
                self._prefilled(sim_request)
                if sim_request.request.role is Role.PREFILL:
                    outputs.append(self._end_prefill(key, sim_request))
                    continue
                if sim_request.request.pooling is not None:
                    outputs.append(self._pooled(key, sim_request.request))
                    continue
            outputs.append(self._decode(key, sim_request))
        self._planned = []
        return outputs, grown

    def blocks_needed(self, request: EngineRequest) -> int:
        tokens = len(request.prompt_ids)
        if request.role is Role.DECODE:
            tokens += request.sampling.max_tokens
        return blocks_for(tokens, self._block_tokens)

    def prompt_blocks(self, request: EngineRequest) -> int:
        return blocks_for(len(request.prompt_ids), self._block_tokens)

    def computed_blocks(self, sim_request: SimRequest) -> int:
        if sim_request.computed >= len(sim_request.request.prompt_ids):
            return self.prompt_blocks(sim_request.request)
        return sim_request.computed // self._block_tokens

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
        """Raises AssertionError."""
        owned = [block for sim_request in self._requests.values() for block in sim_request.blocks]
        if len(owned) + len(self._free) != self._total or len(set(owned)) != len(owned):
            raise AssertionError("blocks were lost or are owned twice")

    # ------------------------------------------------------------ inside

    def _active(self) -> int:
        idle = (Phase.WAITING, Phase.PINNED)
        return sum(1 for sim_request in self._requests.values() if sim_request.phase not in idle)

    def _prefill(self, sim_request: SimRequest, tokens: int) -> None:
        prompt = sim_request.request.prompt_ids
        received = blocks_for(sim_request.cached, self._block_tokens)
        first = max(received, sim_request.computed // self._block_tokens)
        sim_request.computed += tokens
        end, adapter = self.computed_blocks(sim_request), sim_request.request.adapter
        self._kv.compute(prompt, sim_request.blocks, first, end, adapter)

    def _prefilled(self, sim_request: SimRequest) -> None:
        sim_request.phase = Phase.DECODE
        if sim_request.request.role is Role.DECODE:
            prompt = sim_request.request.prompt_ids
            remote = sim_request.blocks[: blocks_for(sim_request.cached, self._block_tokens)]
            damage = self._kv.damage(prompt, remote, sim_request.request.adapter)
            seed, adapter = sim_request.request.sampling.seed, sim_request.request.adapter
            sim_request.text = SimText(prompt, seed, damage, adapter)

    def _end_prefill(self, key: str, sim_request: SimRequest) -> Output:
        sim_request.phase = Phase.PINNED
        if not sim_request.sends:
            self._remove(key)
        return Output(key=key, token_ids=[], finish_reason=FinishReason.LENGTH)

    def _pooled(self, key: str, request: EngineRequest) -> Output:
        assert request.pooling is not None
        self._remove(key)
        pooled = pooled_numbers(request.prompt_ids, request.pooling)
        return Output(key=key, token_ids=[], finish_reason=FinishReason.STOP, pooled=pooled)

    def _decode(self, key: str, sim_request: SimRequest) -> Output:
        text = sim_request.text
        if text is None:
            return Output(key=key, token_ids=[], error=Code.INTERNAL, message="no text to go on")
        sampling = sim_request.request.sampling
        first = sim_request.emitted == 0
        tokens, finish, stop_token = [text.next_token()], "", -1
        drafts = 0 if first else self._accept(tokens[0])
        while True:
            sim_request.emitted += 1
            stops = tokens[-1] in sampling.stop_token_ids
            if stops and sim_request.emitted > sampling.min_tokens:
                finish, stop_token = FinishReason.STOP, tokens[-1]
            elif sim_request.emitted >= sampling.max_tokens:
                finish = FinishReason.LENGTH
            if finish or len(tokens) > drafts:
                break
            tokens.append(text.next_token())
        if finish:
            self._remove(key)
        cached = sim_request.cached if first else 0
        return Output(key, tokens, finish, stop_token, cached, handed_over_tokens=cached)

    def _accept(self, token: int) -> int:
        """How many drafted tokens come with this one."""
        most = len(self._drafted)
        accepted = token % (most + 1)
        for position in range(most):
            self._drafted[position] += 1
            self._accepted[position] += position < accepted
        return accepted

    def take_drafts(self) -> Drafts | None:
        """Those of the steps since the last call; None: there were none."""
        made = Drafts(tuple(self._drafted), tuple(self._accepted))
        self._drafted, self._accepted = [0] * len(made.drafted), [0] * len(made.drafted)
        return made if any(made.drafted) else None

    def _remove(self, key: str) -> None:
        sim_request = self._requests.pop(key)
        if sim_request.phase is Phase.WAITING:
            self._waiting.remove(key)
        self._free.extend(reversed(sim_request.blocks))
