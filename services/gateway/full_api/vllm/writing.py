"""What a helper process does to write an answer: it gives vLLM's classes what the engines sent."""

from __future__ import annotations

import asyncio

from common.errors import BatonError, Code
from common.messages import Structured
from services.gateway.api.kinds import RequestSpec
from services.gateway.auth.caller import Caller
from services.gateway.full_api.port import ApiRequest, CheckedBody, JsonReply, Recorded
from services.gateway.full_api.vllm.recording import replay
from services.gateway.full_api.vllm.serving import VllmApi
from services.gateway.streams.answer import FailureListener, TokenStream


class AnswerWriter:
    """Stands where the gateway's fleet would: it sends what was recorded."""

    def __init__(self) -> None:
        self.api: VllmApi | None = None
        self.deltas: Recorded = {}

    async def compiles(self, structured: Structured, caller: Caller) -> None:
        """It did, before anything was generated."""

    def open(
        self,
        spec: RequestSpec,  # noqa: ARG002 - the order of generations is not relied on
        stream: TokenStream,
        listener: FailureListener,  # noqa: ARG002
        caller: Caller,  # noqa: ARG002
    ) -> None:
        assert self.api is not None
        deltas = self.deltas.get(self.api.client.generation_key, [])
        asyncio.get_running_loop().call_soon(replay, stream.push, deltas)

    def close(self, spec: RequestSpec, reason: str) -> None:
        """Nothing runs."""

    async def answer(
        self, api_request: ApiRequest, checked: CheckedBody, deltas: Recorded
    ) -> bytes:
        """Raises BatonError."""
        assert self.api is not None
        self.deltas = deltas
        try:
            reply = await self.api.generate(api_request, checked)
        finally:
            self.deltas = {}
            self.api.end(api_request, "written")
        if not isinstance(reply, JsonReply):
            raise BatonError(Code.INTERNAL, "a stream is not written in one piece")
        return reply.body
