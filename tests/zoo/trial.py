"""Tries one family: a plain vLLM engine first, then prefill and decode on two, with what may go
wrong between them. Every text must be the plain engine's, token for token."""

from __future__ import annotations

import asyncio
import itertools
import random
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from common.engine.port import EngineRequest
from common.errors import BatonError
from common.kv.messages import KvDone
from common.kv.plan import MESSAGE_BYTES_MIN
from common.messages import KvReport, Role, Sampling
from tests.e2e.engine.pair import GREEDY, Pair, Result, make_config, open_pair, until
from tests.e2e.prompts import prompts
from tests.e2e.reference import MARGIN
from tests.zoo.checkpoints import checkpoint
from tests.zoo.families import CONTEXT, Family
from tests.zoo.faults import Fault, PrefillFaults
from tests.zoo.judge import judge

CHUNK = 512
LENGTH_MAX = 3000
#: Block sizes, windows and chunks; prompts are as long as each, one shorter and one longer.
SIZES = (16, 64, 128, 192, 256, CHUNK, 1024, 2048)
EDGES = (1, 2, *(size + n for size in SIZES for n in (-1, 0, 1)), LENGTH_MAX - 1, LENGTH_MAX)
#: Prompts of a trial; of one with two ranks, all edges and some more.
WHOLE, TWO_RANKS, SAMPLE = 200, 40, 12
SPARE = 4
CONCURRENT = 16
LONG = Sampling(max_tokens=800, temperature=0.0, ignore_eos=True)
CUT = 5
DISTINCT_MIN = 3.0
ENGINE: dict[str, Any] = {"max_num_batched_tokens": CHUNK, "kv_cache_mib": 256}


@dataclass(frozen=True)
class Group:
    """A KV cache group of the plain engine."""

    #: vLLM's class.
    kind: str
    layers: int
    block_tokens: int
    #: Tokens of the window or the chunk; 0 if there is neither.
    reach: int = 0

    def blocks(self, tokens: int) -> int:
        """How many hold what the token after so many needs."""
        first = {
            "SlidingWindowSpec": max(0, tokens + 1 - self.reach),
            "ChunkedLocalAttentionSpec": tokens - tokens % max(1, self.reach),
            "MambaSpec": max(0, tokens - 1),
        }.get(self.kind, 0)
        return -(-tokens // self.block_tokens) - first // self.block_tokens

    def blocks_before(self, tokens: int, before: int) -> int:
        """Those of them that are full after the first `before` tokens."""
        whole = -(-tokens // self.block_tokens)
        return max(0, self.blocks(tokens) - whole + before // self.block_tokens)


@dataclass
class Outcome:
    family: Family
    #: What the plain engine keeps.
    groups: list[Group] = field(default_factory=list)
    #: Of a block of any group, on one rank.
    block_bytes: int = 0
    #: Why the plain engine does not start; empty if it does.
    unserved: str = ""
    #: Why Baton refuses the model; empty if it does not.
    refused: str = ""
    block_tokens: int = 0
    #: Texts that equalled the plain engine's.
    equal: int = 0
    #: What did not hold.
    wrong: list[str] = field(default_factory=list)
    #: Of each engine, the plain one included (tensor parallelism).
    ranks: int = 1


class Trial:
    def __init__(self, family: Family, count: int, seed: int, ranks: int = 1) -> None:
        self.outcome = Outcome(family, ranks=ranks)
        self._family = family
        self._ranks = ranks
        self._model = checkpoint(family)
        self._faults = PrefillFaults()
        self._seed = seed
        self._count = count
        self._expected: list[tuple[list[int], list[int]]] = []
        self._pair: Pair
        self._cut: list[int] = []
        #: The most that a handoff took, on one rank.
        self._messages = 0

    def run(self) -> Outcome:
        """A model that is refused is judged all the same, for what its layers keep."""
        try:
            self._open()
        except BatonError as error:
            self.outcome.refused = error.message
            self._judge(1)
            return self.outcome
        self._judge(self._count)
        if self.outcome.unserved:
            asyncio.run(self._play())
        elif self._family.alone:
            asyncio.run(self._play(self._equal_texts, self._misled))
        elif self._count < WHOLE:
            asyncio.run(self._play(self._equal_texts, self._damaged, self._misled, self._p_dies))
        else:
            steps = (self._equal_texts, self._damaged, self._misled, self._aborted, self._d_dies)
            asyncio.run(self._play(*steps))
            self._open()
            asyncio.run(self._play(self._continued, self._p_dies))
        return self.outcome

    def _open(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="zoo-")
        split = {"tensor_parallel_size": self._ranks}
        args = {"enforce_eager": True, **split, **self._family.engine.get("args", {})}
        engine = {**ENGINE, **self._family.engine, "args": args}
        config = make_config(Path(self._folder.name), engine, model=str(self._model))
        self._faults.switch(Fault.NONE)
        with self._faults.installed():
            self._pair = open_pair(config)
        self.outcome.block_tokens = self._pair.decode.engine.info.capacity.block_tokens

    def _judge(self, count: int) -> None:
        asked = prompts(WHOLE + SPARE, edges=EDGES)
        if count == SAMPLE:
            random.Random(self._seed).shuffle(asked)
        asked = asked[: count + SPARE]
        limits = {"max_model_len": CONTEXT, "max_num_seqs": 32}
        split = {"tensor_parallel_size": self._ranks}
        engine = {**limits, **split, **plain_engine(self._family)}
        question = {"model": str(self._model), "prompts": asked, "engine": engine}
        alone = bool(self._family.alone)
        told = judge(question | {"max_tokens": GREEDY.max_tokens + alone, "alone": alone})
        self.outcome.unserved = told.get("error", "")
        if self.outcome.unserved:
            return
        self.outcome.groups = [Group(*group) for group in told["groups"]]
        self.outcome.block_bytes = told["block_bytes"]
        distinct = [len(set(tokens)) for tokens in told["tokens"]]
        self._check(sum(distinct) / len(distinct) > DISTINCT_MIN, "the model repeats itself")
        clear = [
            ([*prompt, *tokens[:alone]], tokens[alone:])
            for prompt, tokens, margin in zip(asked, told["tokens"], told["margin"], strict=True)
            if margin > MARGIN
        ]
        self._check(len(clear) >= count, "the model decides too closely")
        self._expected = clear[:count]

    async def _play(self, *steps: Callable[[], Awaitable[None]]) -> None:
        """These steps in order, none after one that came to no end; then the pair is closed."""
        pair = self._pair
        async with pair:
            for step in steps:
                try:
                    await step()
                except (TimeoutError, BatonError) as error:
                    self.outcome.wrong.append(f"{step.__name__}: {error!r}")
                    break
        await pair.decode.engine.close()
        await pair.prefill.engine.close()
        self._folder.cleanup()

    # ------------------------------------------------------------ steps

    async def _equal_texts(self) -> None:
        pair = self._pair
        for prompt, tokens in self._expected[: max(4, self._count // 10)]:
            result, end = await pair.hand_over(prompt, salt=pair.request_id())
            self._equal("one at a time", prompt, result.tokens, tokens)
            self._moved(prompt, result, end)
        limit = asyncio.Semaphore(1 if self._family.alone else CONCURRENT)

        async def one(prompt: list[int], tokens: list[int]) -> KvReport:
            async with limit:
                result, end = await pair.hand_over(prompt)
            self._equal("all at once", prompt, result.tokens, tokens)
            self._check(end.error == "", f"all at once: {end.message}")
            return end.report

        reports = await asyncio.gather(*(one(*each) for each in self._expected))
        self._messages = max(report.messages for report in reports) // self._ranks
        if self._leaves_early():
            early = any(report.early_bytes for report in reports)
            self._check(early, "nothing left before its prefill ended")
        await pair.prefill.empty()
        await pair.decode.empty()

    async def _damaged(self) -> None:
        self._faults.switch(Fault.DAMAGE)
        for prompt, tokens in self._some(2):
            result, end = await self._pair.hand_over(prompt, salt=self._pair.request_id())
            self._equal("damaged KV", prompt, result.tokens, tokens)
            self._check(end.report.digest_mismatches > 0, "damage was not found")
            self._check(end.error != "", "damaged KV was taken")
        self._faults.switch(Fault.NONE)

    async def _misled(self) -> None:
        self._faults.switch(Fault.MISLEAD)
        for prompt, tokens in self._some(2):
            result, end = await self._pair.hand_over(prompt, salt=self._pair.request_id())
            self._check(end.error == "", f"misled: {end.message}")
            self._check(result.tokens != tokens, "the text does not depend on the KV")
        self._faults.switch(Fault.NONE)

    async def _aborted(self) -> None:
        """At P, so that D computes the prompt; and at both."""
        pair = self._pair
        (prompt, tokens), (other, _) = self._some(2)
        at_p, at_d = pair.requests(prompt, salt="aborted at P")
        await pair.prefill.add(at_p)
        result = await pair.decode.add(at_d)
        await pair.prefill.engine.abort(at_p.request_id, 0)
        await asyncio.wait_for(result.done.wait(), 60)
        self._equal("aborted at P", prompt, result.tokens, tokens)
        at_p, at_d = pair.requests(other, salt="aborted at both")
        await pair.prefill.add(at_p)
        await pair.decode.add(at_d)
        await pair.decode.engine.abort(at_d.request_id, 0)
        await pair.prefill.engine.abort(at_p.request_id, 0)
        await pair.prefill.empty(60)
        await pair.decode.empty(60)

    async def _p_dies(self) -> None:
        """Before the second message of a handoff, or the only one; then it is asked once more."""
        pair = self._pair
        self._faults.switch(Fault.DIE, after=min(1, self._messages - 1))
        for where in ("P killed in the handoff", "P killed before the handoff"):
            ((prompt, tokens),) = self._some(1)
            at_p, at_d = pair.requests(prompt, salt=where)
            if where == "P killed in the handoff":
                await pair.prefill.add(at_p)
            result = await pair.decode.add(at_d)
            end = await pair.decode.kv_end(at_d.request_id, "receive", 60)
            self._check(end.error != "", f"{where}: it was not noticed")
            await asyncio.wait_for(result.done.wait(), 60)
            self._equal(where, prompt, result.tokens, tokens)

    async def _d_dies(self) -> None:
        pair = self._pair
        ((prompt, _),) = self._some(1)
        at_p, at_d = pair.requests(prompt, LONG)
        await pair.prefill.add(at_p)
        result = await pair.decode.add(at_d)
        await until(lambda: len(result.tokens) >= CUT, 60)
        max(psutil.Process().children(), key=psutil.Process.create_time).kill()
        self._cut = result.tokens[:CUT]
        await pair.prefill.empty(60)

    async def _continued(self) -> None:
        """Where D was killed, as the next attempt of another pair."""
        pair = self._pair
        ((prompt, tokens),) = self._some(1)
        self._equal("before D was killed", prompt, self._cut, tokens[:CUT])
        rest = Sampling(max_tokens=len(tokens) - CUT, temperature=0.0, ignore_eos=True)
        name = pair.request_id()
        ticket = pair.ticket(name)
        both = [
            EngineRequest(name, 0, role, prompt + self._cut, rest, ticket, None, CUT)
            for role in (Role.PREFILL, Role.DECODE)
        ]
        await pair.prefill.add(both[0])
        result = await pair.decode.add(both[1])
        await asyncio.wait_for(result.done.wait(), 60)
        self._equal("after D was killed", prompt, result.tokens, tokens[CUT:])

    # ------------------------------------------------------------ what must hold

    def _some(self, count: int) -> list[tuple[list[int], list[int]]]:
        """Prompts of several chunks, whose handoff takes several messages."""
        by_length = sorted(self._expected, key=lambda each: -len(each[0]))
        return by_length[:count]

    def _leaves_early(self) -> bool:
        """Whether KV of the longest handoff must leave while it is computed: of several messages
        the first layers do. State layers do not tell when they are done, so that with them a
        message leaves when all its blocks are there, of which the last has the state."""
        groups = self.outcome.groups
        chunk = self._family.engine.get("max_num_batched_tokens", CHUNK)
        if not any(group.kind == "MambaSpec" for group in groups):
            keeps_all = any(group.kind == "FullAttentionSpec" for group in groups)
            return chunk == CHUNK and keeps_all and self._messages > 1
        tokens = max(len(prompt) for prompt, _ in self._expected) - 1
        before = (tokens - 1) // chunk * chunk
        blocks = sum(group.blocks_before(tokens, before) for group in groups)
        pages = max(group.layers for group in groups)
        return blocks * self.outcome.block_bytes >= MESSAGE_BYTES_MIN * pages

    def _moved(self, prompt: list[int], result: Result, end: KvDone) -> None:
        """Exactly the KV of what D lacked came, and D computed the last token only."""
        block_bytes = self._ranks * self.outcome.block_bytes
        wanted = bytes_on_wire(self.outcome.groups, block_bytes, len(prompt))
        came = end.report.raw_bytes
        self._check(end.error == "", f"{len(prompt)} tokens: {end.message}")
        self._check(came == wanted, f"{len(prompt)} tokens: {came} bytes came, not {wanted}")
        self._check(
            result.cached == len(prompt) - 1, f"{len(prompt)} tokens: {result.cached} cached"
        )

    def _equal(self, where: str, prompt: list[int], ours: list[int], plain: list[int]) -> None:
        pairs = zip(ours, plain, strict=False)
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        sentence = f"{where}, {len(prompt)} tokens: {same} of {len(plain)} tokens equal"
        self.outcome.equal += self._check(ours == plain, sentence)

    def _check(self, holds: bool, sentence: str) -> bool:
        if not holds:
            self.outcome.wrong.append(sentence)
        return holds


def plain_engine(family: Family) -> dict[str, Any]:
    """The pair's settings in vLLM's words."""
    engine = {**ENGINE, **family.engine}
    limits = {"max_num_batched_tokens": engine["max_num_batched_tokens"]}
    return {**limits, **engine.get("args", {}), **family.plain}


def bytes_on_wire(groups: list[Group], block_bytes: int, prompt_tokens: int) -> int:
    """What a handoff to a D without a prefix of it must move: of each group the blocks that the
    prompt's last token needs of those before it."""
    tokens = prompt_tokens - 1
    return block_bytes * sum(group.blocks(tokens) for group in groups)
