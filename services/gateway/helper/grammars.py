"""Which structures compile: a helper finds out, and its judgement is remembered by the structure's
digest."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

import msgspec
import xxhash

from common.config import RequestLimits
from common.errors import BatonError, Code
from common.messages import Structured
from services.gateway.auth.caller import Caller
from services.gateway.helper.jobs import GrammarJob
from services.gateway.helper.pool import HelperPool
from services.gateway.requests.refusals import RETRY_SOON_MS

JUDGEMENTS_MAX = 2_048


@dataclass(frozen=True, slots=True)
class PendingGrammar:
    """A structure that waits or compiles. Further requests with the same one wait with it and count
    for no key."""

    #: Of the request that it came with first; empty for an anonymous caller.
    key_id: str
    #: What is wrong with it, or None.
    judged: asyncio.Future[BatonError | None]


class Grammars:
    def __init__(self, pool: HelperPool, limits: RequestLimits) -> None:
        self._pool = pool
        self._limits = limits
        #: By digest.
        self._pending: dict[bytes, PendingGrammar] = {}
        #: By digest: what is wrong with it, or None.
        self._judged: OrderedDict[bytes, BatonError | None] = OrderedDict()

    async def check(self, structured: Structured, caller: Caller) -> None:
        """Returns if the structure compiles. Raises BatonError: INVALID_REQUEST if it does not, or
        not within the limits; RATE_LIMITED while the caller's key has too many new structures, and
        OVERLOADED while all keys together have."""
        digest = xxhash.xxh3_128_digest(msgspec.msgpack.encode(structured))
        if digest in self._judged:
            self._judged.move_to_end(digest)
            error = self._judged[digest]
        else:
            error = await asyncio.shield(self._judgement(digest, structured, caller.key_id))
        if error is not None:
            raise BatonError(error.code, error.message, param=error.param)

    def _judgement(
        self, digest: bytes, structured: Structured, key_id: str
    ) -> asyncio.Future[BatonError | None]:
        known = self._pending.get(digest)
        if known is not None:
            return known.judged
        most = self._limits.grammars_per_key_max
        if key_id and sum(grammar.key_id == key_id for grammar in self._pending.values()) >= most:
            raise BatonError(
                Code.RATE_LIMITED,
                f"{most} new grammars of this key are being compiled or wait for it "
                "(gateway.limits.grammars_per_key_max); try again",
                retry_after_ms=RETRY_SOON_MS,
            )
        work = self._judge(digest, structured, key_id)
        judged = asyncio.ensure_future(work)  # noqa: TID251 - who asks first may leave
        self._pending[digest] = PendingGrammar(key_id, judged)
        judged.add_done_callback(lambda _: self._pending.pop(digest, None))
        return judged

    async def _judge(self, digest: bytes, structured: Structured, key_id: str) -> BatonError | None:
        error = None
        try:
            await self._pool.run(GrammarJob(structured), key_id)
        except BatonError as raised:
            if raised.code is not Code.INVALID_REQUEST:
                raise
            error = raised
        self._judged[digest] = error
        if len(self._judged) > JUDGEMENTS_MAX:
            self._judged.popitem(last=False)
        return error
