"""vLLM's `EngineClient` with the whole fleet as its engine.

Theory of operation: vLLM's API code calls `generate` of an `EngineClient`. `AsyncLLM` would check
the request with its `InputProcessor`, make n requests of n choices, send each to EngineCore, and
have its `OutputProcessor` turn what comes back into `RequestOutput`s. Here the first and the last
step are vLLM's too. Between them each request is one of ours: submitted to the router, computed by
workers, its tokens in a journal. A context variable tells to which HTTP request a `generate`
belongs, because vLLM passes nothing of ours through.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextvars import ContextVar
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from vllm.engine.protocol import EngineClient
from vllm.exceptions import GenerationError, VLLMError
from vllm.renderers import renderer_from_config
from vllm.renderers.inputs.preprocess import extract_prompt_components
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.detokenizer import IncrementalDetokenizer
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector
from vllm.v1.engine.parallel_sampling import ParentRequest

from common.config import RequestLimits
from common.errors import BatonError, Code
from common.messages import ImageFeatures
from services.gateway.api.bounds import check_choices, check_size, check_stops, check_structured
from services.gateway.api.intake import PROMPT_TOKENS_MAX
from services.gateway.api.kinds import Kind, RequestSpec, priority_class
from services.gateway.api.routes import Route
from services.gateway.auth.caller import Caller
from services.gateway.full_api.port import ApiRequest, CheckGrammar, CloseStream, OpenStream
from services.gateway.full_api.vllm.errors import translated
from services.gateway.full_api.vllm.prepared import images_in
from services.gateway.full_api.vllm.recording import AllRecorded, RecordedStream, Recording
from services.gateway.full_api.vllm.sampling import structured_of, to_sampling
from services.gateway.full_api.vllm.stream import EngineStream
from services.gateway.streams.journal import Journal

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.outputs import RequestOutput
    from vllm.v1.engine import EngineCoreRequest

TASKS = ("generate",)


def _not_supported(_: EngineClient, *__: Any, **___: Any) -> NoReturn:
    raise NotImplementedError("this concerns a single engine; see `baton ctl`")


class FleetClient(EngineClient):
    """`open_`, `close` and `compiles` lead back into the gateway."""

    def __init__(
        self,
        config: VllmConfig,
        model: str,
        compiles: CheckGrammar,
        limits: RequestLimits,
        open_: OpenStream,
        close: CloseStream,
    ) -> None:
        self.vllm_config = config
        self.model_config = config.model_config
        self.renderer = renderer_from_config(config)
        self.input_processor = InputProcessor(config, self.renderer)
        #: Of the generation that is opened now: the same in the gateway and in a helper.
        self.generation_key = ""
        self._outputs = OutputProcessor(self.renderer.tokenizer, log_stats=False)
        self._model = model
        self._compiles = compiles
        self._limits = limits
        self._open = open_
        self._close = close
        self._api_request: ContextVar[ApiRequest] = ContextVar("asking")
        self._recording: ContextVar[Recording | None] = ContextVar("recording", default=None)

    def begin(self, api_request: ApiRequest, recording: Recording | None = None) -> None:
        """From now on this task, and those that it starts, generate for `api_request`. With
        `recording` they end with AllRecorded instead of outputs."""
        self._api_request.set(api_request)
        self._recording.set(recording)

    def end(self, api_request: ApiRequest, reason: str) -> None:
        """Aborts what still runs; harmless after the end."""
        for spec in api_request.specs:
            self._outputs.abort_requests([spec.request_id], internal=True)
            self._close(spec, reason)

    async def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        reasoning_ended: bool | None = None,
        reasoning_parser_kwargs: dict[str, Any] | None = None,
        **_: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Raises vLLM's own errors; `ApiRequest.error` then has ours. Session id, LoRA, trace
        headers and data parallel rank are not passed on: they were refused before, or come from the
        HTTP request."""
        api_request = self._api_request.get()
        try:
            await self._check(sampling_params, api_request.origin.caller)
            async with api_request.opening:
                request = self._processed(request_id, prompt, sampling_params)
                request.reasoning_ended = reasoning_ended
                request.reasoning_parser_kwargs = reasoning_parser_kwargs
                request.priority = priority
                queue = self._start(api_request, request, prompt)
                await asyncio.sleep(0)
        except (VLLMError, BatonError, ValueError, TypeError) as error:
            api_request.fail(translated(error))
            raise
        recording = self._recording.get()
        if recording is not None:
            await self._recorded(recording, api_request)
        finished = recording is not None
        while not finished:
            output = queue.get_nowait() or await queue.get()
            finished = output.finished
            yield output

    async def _recorded(self, recording: Recording, api_request: ApiRequest) -> None:
        """Raises AllRecorded when the last generation of the request has ended."""
        await recording.wait()
        if api_request.error is not None:
            raise GenerationError(api_request.error.message)
        recording.left -= 1
        if not recording.left:
            raise AllRecorded

    async def _check(self, params: SamplingParams, caller: Caller) -> None:
        """Checks `[gateway.limits]`, and that a grammar compiles."""
        check_choices(params.n, self._limits)
        check_stops(params.stop or (), self._limits)
        if params.structured_outputs is not None:
            structured = structured_of(params.structured_outputs)
            check_structured(structured, self._limits)
            await self._compiles(structured, caller)

    def _processed(self, request_id: str, prompt: Any, params: SamplingParams) -> EngineCoreRequest:
        """Leaves the grammar out of vLLM's own check, which would block the loop; `_check` had it
        checked in another process."""
        structured = params.structured_outputs
        unconstrained = copy(params)
        unconstrained.structured_outputs = None
        request = self.input_processor.process_inputs(request_id, prompt, unconstrained, TASKS)
        request.sampling_params.structured_outputs = structured
        return request

    def _start(
        self, api_request: ApiRequest, request: EngineCoreRequest, prompt: Any
    ) -> RequestOutputCollector:
        request.external_req_id = request.request_id
        first = api_request.next_id()
        request.request_id = first
        params = request.sampling_params
        queue = RequestOutputCollector(params.output_kind, first)
        if params.n == 1:
            self._start_one(api_request, request, prompt, None, 0, queue)
            return queue
        request.request_id = f"{first}~all"
        parent = ParentRequest(request)
        for index in range(params.n):
            _, child_params = parent.get_child_info(index)
            child = copy(request)
            child.request_id, child.sampling_params = api_request.next_id(), child_params
            self._start_one(api_request, child, prompt, parent, index, queue)
        parent.child_requests.clear()
        parent.child_requests.update(spec.request_id for spec in api_request.specs[-params.n :])
        return queue

    def _start_one(
        self,
        api_request: ApiRequest,
        request: EngineCoreRequest,
        prompt: Any,
        parent: ParentRequest | None,
        index: int,
        queue: RequestOutputCollector,
    ) -> None:
        spec = self._spec(api_request, request, images_in(prompt))
        api_request.specs.append(spec)
        journal = Journal(spec.prompt_ids, spec.sampling.max_tokens)
        api_request.journals.append(journal)
        key = f"{request.external_req_id}/{index}"
        recording = self._recording.get()
        if recording is not None:
            detokenizer = IncrementalDetokenizer.from_new_request(self._outputs.tokenizer, request)
            recorded = RecordedStream(journal, detokenizer, api_request, key, recording)
            self._open(spec, recorded, recorded, api_request.origin.caller)
            return
        text, _ids, _embeds = extract_prompt_components(self.model_config, prompt)
        self._outputs.add_request(request, text, parent, index, queue)
        stream = EngineStream(
            spec.request_id,
            journal,
            self._outputs,
            api_request,
            frozenset(spec.sampling.stop_token_ids),
            partial(_wake, queue),
        )
        self.generation_key = key
        self._open(spec, stream, stream, api_request.origin.caller)

    def _spec(
        self,
        api_request: ApiRequest,
        request: EngineCoreRequest,
        images: tuple[ImageFeatures, ...],
    ) -> RequestSpec:
        prompt_ids = request.prompt_token_ids
        if prompt_ids is None or request.mm_features:
            raise BatonError(Code.UNSUPPORTED_PARAMETER, "only text prompts are supported")
        if len(prompt_ids) > PROMPT_TOKENS_MAX:
            sentence = f"the prompt has {len(prompt_ids)} tokens, at most {PROMPT_TOKENS_MAX}"
            raise BatonError(Code.CONTEXT_LENGTH_EXCEEDED, sentence)
        sampling = to_sampling(request)
        if sampling.prompt_logprobs is not None and api_request.is_stream:
            entries = len(prompt_ids) * (sampling.prompt_logprobs + 1)
            most, key = self._limits.stream_prompt_logprobs_max, "stream_prompt_logprobs_max"
            check_size("prompt_logprobs", "in a stream", entries, most, key)
        return RequestSpec(
            kind=Kind.COMPLETION if api_request.route is Route.COMPLETION else Kind.CHAT,
            request_id=request.request_id,
            model=self._model,
            created=0,
            prompt_ids=prompt_ids,
            sampling=sampling,
            deadline_ms=api_request.origin.deadline_ms,
            session=api_request.session,
            cache_salt=request.cache_salt or "",
            images=images,
            local_reason="prompt_logprobs" if sampling.prompt_logprobs is not None else "",
            priority=priority_class(request.priority),
            timer=api_request.next_timer(),
            traceparent=api_request.origin.traceparent,
            attended=api_request.is_attended(),
            adapter=api_request.adapter,
        )

    # ------------------------------------------------------------ the rest of an EngineClient

    @property
    def is_running(self) -> bool:
        return True

    @property
    def is_stopped(self) -> bool:
        return False

    @property
    def errored(self) -> bool:
        """The fleet reports errors by request."""
        return False

    @property
    def dead_error(self) -> BaseException:
        error: BaseException = GenerationError("no engine")
        return error

    async def get_supported_tasks(self) -> tuple[str, ...]:
        return TASKS

    async def abort(self, request_id: Any) -> None:
        """vLLM's API code does not call it; `end` ends a request."""

    async def check_health(self) -> None: ...

    async def do_log_stats(self) -> None: ...

    async def is_tracing_enabled(self) -> bool:
        return False

    def shutdown(self, timeout: float | None = None) -> None: ...

    async def is_sleeping(self) -> bool:
        return False

    async def is_paused(self) -> bool:
        return False

    encode = notify_kv_transfer_request_rejected = add_lora = _not_supported
    start_profile = stop_profile = pause_generation = resume_generation = _not_supported
    reset_mm_cache = reset_encoder_cache = reset_prefix_cache = _not_supported
    sleep = wake_up = release_kv_cache_memory = _not_supported


def _wake(queue: RequestOutputCollector, error: BatonError) -> None:
    queue.put(GenerationError(error.message))
