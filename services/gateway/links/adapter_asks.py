"""Clients with an operator's key that wait until the fleet has loaded a LoRA adapter, or let it
go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from common.errors import BatonError, Code
from common.messages import AdapterTold, AskAdapter
from services.gateway.requests.refusals import known_code, unreachable

ASKS_MAX = 64
ANSWER_SECONDS = 90.0


class AdapterAsks:
    """`send` gives the router a message; False if there is none."""

    def __init__(self, send: Callable[[AskAdapter], bool]) -> None:
        self._send = send
        self._waiting: dict[int, asyncio.Future[AdapterTold]] = {}
        self._last = 0

    async def ask(self, name: str, path: str, model: str) -> None:
        """`path`: empty lets it go. Raises BatonError with what the workers say."""
        if len(self._waiting) >= ASKS_MAX:
            sentence = f"{ASKS_MAX} orders for adapters are under way"
            raise BatonError(Code.OVERLOADED, sentence, retry_after_ms=1_000)
        self._last += 1
        ask_id, answer = self._last, asyncio.get_running_loop().create_future()
        self._waiting[ask_id] = answer
        try:
            if not self._send(AskAdapter(ask_id=ask_id, name=name, path=path, model=model)):
                raise unreachable()
            async with asyncio.timeout(ANSWER_SECONDS):
                told = await answer
        except TimeoutError:
            sentence = f"no answer within {ANSWER_SECONDS:g} s; `baton ctl adapter` shows more"
            raise BatonError(Code.ROUTER_UNREACHABLE, sentence) from None
        finally:
            del self._waiting[ask_id]
        if told.code:
            raise BatonError(known_code(told.code), told.message, param="lora_name")

    def answered(self, told: AdapterTold) -> None:
        """Of an ask that nobody waits for any more it is dropped."""
        answer = self._waiting.get(told.ask_id)
        if answer is not None and not answer.done():
            answer.set_result(told)
