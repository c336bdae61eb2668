"""Clients that wait for an adapter: told once, whatever happens to the router."""

from __future__ import annotations

import asyncio

import pytest

from common.errors import BatonError, Code
from common.messages import AdapterTold, AskAdapter
from services.gateway.links import adapter_asks
from services.gateway.links.adapter_asks import AdapterAsks


def test_each_is_told_what_became_of_its_own() -> None:
    async def play() -> tuple[BaseException | None, BaseException | None]:
        sent: list[AskAdapter] = []

        def send(message: AskAdapter) -> bool:
            sent.append(message)
            if len(sent) == 2:
                code, sentence = "not_found", "no worker has 'law'"
                asks.answered(AdapterTold(ask_id=2, code=code, message=sentence))
                asks.answered(AdapterTold(ask_id=99))
                asks.answered(AdapterTold(ask_id=1))
                asks.answered(AdapterTold(ask_id=1, code="internal"))
            return True

        asks = AdapterAsks(send)
        both = (asks.ask("sql", "/sql", ""), asks.ask("law", "/law", ""))
        return await asyncio.gather(*both, return_exceptions=True)

    good, bad = asyncio.run(play())
    assert good is None
    assert isinstance(bad, BatonError)
    assert (bad.code, bad.message) == (Code.NOT_FOUND, "no worker has 'law'")


def test_without_a_router_or_an_answer_it_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_asks, "ANSWER_SECONDS", 0.01)
    with pytest.raises(BatonError) as refused:
        asyncio.run(AdapterAsks(lambda _: False).ask("sql", "/sql", ""))
    assert refused.value.code is Code.ROUTER_UNREACHABLE
    with pytest.raises(BatonError, match="no answer within"):
        asyncio.run(AdapterAsks(lambda _: True).ask("sql", "/sql", ""))
