"""vLLM's `EngineClient` with the whole fleet as its engine.

Theory of operation: vLLM's API code asks an `EngineClient` to generate. `AsyncLLM` would check the
request with its `InputProcessor`, fan n choices out, send each to EngineCore and have its
`OutputProcessor` make `RequestOutput`s of what comes back. Here the first and the last are vLLM's
too, and in the middle each child is a call of ours: submitted to the router, computed by workers,
its tokens journalled. Which HTTP request a `generate` belongs to is known by context variable,
since vLLM passes nothing of ours through.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextvars import ContextVar
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from vllm.engine.protocol import EngineClient
from vllm.exceptions import GenerationError, VLLMError
from vllm.renderers import renderer_from_config
from vllm.renderers.inputs.preprocess import extract_prompt_components
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector
from vllm.v1.engine.parallel_sampling import ParentRequest

from common.config import RequestLimits
from common.errors import BatonError, Code
from services.gateway.api.bounds import check_choices, check_stops, check_structured
from services.gateway.api.intake import PROMPT_TOKENS_MAX
from services.gateway.api.kinds import Call, Kind, priority_class
from services.gateway.api.routes import Route
from services.gateway.api.whole import Asking, Closes, Compiles, Opens
from services.gateway.auth.caller import Caller
from services.gateway.streams.journal import Journal
from services.gateway.vllm_api.errors import translated
from services.gateway.vllm_api.sampling import structured_of, to_sampling
from services.gateway.vllm_api.stream import EngineStream

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.outputs import RequestOutput
    from vllm.v1.engine import EngineCoreRequest

TASKS = ("generate",)


class FleetClient(EngineClient):
    """`open_`, `close` and `compiles` are the gateway's."""

    def __init__(
        self,
        config: VllmConfig,
        model: str,
        compiles: Compiles,
        limits: RequestLimits,
        open_: Opens,
        close: Closes,
    ) -> None:
        self.vllm_config = config
        self.model_config = config.model_config
        self.renderer = renderer_from_config(config)
        self.input_processor = InputProcessor(config, self.renderer)
        self._outputs = OutputProcessor(self.renderer.tokenizer, log_stats=False)
        self._model = model
        self._compiles = compiles
        self._limits = limits
        self._open = open_
        self._close = close
        self._asking: ContextVar[Asking] = ContextVar("asking")

    def begin(self, asking: Asking) -> None:
        """What this task, and those it starts, generate from now on is for `asking`."""
        self._asking.set(asking)

    def end(self, asking: Asking, reason: str) -> None:
        """Aborts what is still running; harmless after the end."""
        for call in asking.calls:
            self._outputs.abort_requests([call.request_id], internal=True)
            self._close(call, reason)

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
        """Raises vLLM's own errors; what went wrong is then in the asking's `error`, in our words.
        Not passed on, because it is refused or taken from the HTTP request before: `session_id`,
        LoRA, trace headers, data parallel rank."""
        asking = self._asking.get()
        try:
            await self._check(sampling_params, asking.origin.caller)
            request = self._processed(request_id, prompt, sampling_params)
            request.reasoning_ended = reasoning_ended
            request.reasoning_parser_kwargs = reasoning_parser_kwargs
            request.priority = priority
            text, _ids, _embeds = extract_prompt_components(self.model_config, prompt)
            queue = self._start(asking, request, text)
        except (VLLMError, BatonError, ValueError, TypeError) as error:
            asking.fail(translated(error))
            raise
        finished = False
        while not finished:
            output = queue.get_nowait() or await queue.get()
            finished = output.finished
            yield output

    async def _check(self, params: SamplingParams, caller: Caller) -> None:
        """`[gateway.limits]`, the compilation of a grammar included."""
        check_choices(params.n, self._limits)
        check_stops(params.stop or (), self._limits)
        if params.structured_outputs is not None:
            structured = structured_of(params.structured_outputs)
            check_structured(structured, self._limits)
            await self._compiles(structured, caller)

    def _processed(self, request_id: str, prompt: Any, params: SamplingParams) -> EngineCoreRequest:
        """vLLM would check the grammar here, on the loop; `_check` had it done elsewhere."""
        structured = params.structured_outputs
        free = copy(params)
        free.structured_outputs = None
        request = self.input_processor.process_inputs(request_id, prompt, free, TASKS)
        request.sampling_params.structured_outputs = structured
        return request

    def _start(
        self, asking: Asking, request: EngineCoreRequest, text: str | None
    ) -> RequestOutputCollector:
        request.external_req_id = request.request_id
        first = asking.next_id()
        request.request_id = first
        params = request.sampling_params
        queue = RequestOutputCollector(params.output_kind, first)
        if params.n == 1:
            self._start_one(asking, request, text, None, 0, queue)
            return queue
        request.request_id = f"{first}~all"
        parent = ParentRequest(request)
        for index in range(params.n):
            _, child_params = parent.get_child_info(index)
            child = copy(request)
            child.request_id, child.sampling_params = asking.next_id(), child_params
            self._start_one(asking, child, text, parent, index, queue)
        parent.child_requests.clear()
        parent.child_requests.update(call.request_id for call in asking.calls[-params.n :])
        return queue

    def _start_one(
        self,
        asking: Asking,
        request: EngineCoreRequest,
        text: str | None,
        parent: ParentRequest | None,
        index: int,
        queue: RequestOutputCollector,
    ) -> None:
        call = self._call(asking, request)
        self._outputs.add_request(request, text, parent, index, queue)
        asking.calls.append(call)
        journal = Journal(call.prompt_ids, call.sampling.max_tokens)
        asking.journals.append(journal)
        stream = EngineStream(
            call.request_id,
            journal,
            self._outputs,
            asking,
            frozenset(call.sampling.stop_token_ids),
            partial(_wake, queue),
        )
        self._open(call, stream, stream, asking.origin.caller)

    def _call(self, asking: Asking, request: EngineCoreRequest) -> Call:
        prompt_ids = request.prompt_token_ids
        if prompt_ids is None or request.mm_features:
            raise BatonError(Code.UNSUPPORTED_PARAMETER, "only text prompts are supported")
        if len(prompt_ids) > PROMPT_TOKENS_MAX:
            sentence = f"the prompt has {len(prompt_ids)} tokens, at most {PROMPT_TOKENS_MAX}"
            raise BatonError(Code.CONTEXT_LENGTH_EXCEEDED, sentence)
        sampling = to_sampling(request)
        return Call(
            kind=Kind.COMPLETION if asking.route is Route.COMPLETION else Kind.CHAT,
            request_id=request.request_id,
            model=self._model,
            created=0,
            prompt_ids=prompt_ids,
            sampling=sampling,
            deadline_ms=asking.origin.deadline_ms,
            session=asking.origin.session,
            local_reason="prompt_logprobs" if sampling.prompt_logprobs is not None else "",
            priority=priority_class(request.priority),
            timing=asking.origin.timing,
            traceparent=asking.origin.traceparent,
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
        """The fleet answers for itself, request by request."""
        return False

    @property
    def dead_error(self) -> BaseException:
        error: BaseException = GenerationError("no engine")
        return error

    async def get_supported_tasks(self) -> tuple[str, ...]:
        return TASKS

    async def abort(self, request_id: Any) -> None:
        """vLLM's API code does not call it: a request ends by `end`."""

    async def check_health(self) -> None: ...

    async def do_log_stats(self) -> None: ...

    async def is_tracing_enabled(self) -> bool:
        return False

    def shutdown(self, timeout: float | None = None) -> None: ...

    def encode(self, *_: Any, **__: Any) -> NoReturn:
        _not_here()

    async def notify_kv_transfer_request_rejected(self, *_: Any, **__: Mapping[str, Any]) -> None:
        _not_here()

    async def start_profile(self, *_: Any, **__: Any) -> None:
        _not_here()

    async def stop_profile(self) -> None:
        _not_here()

    async def reset_mm_cache(self) -> None:
        _not_here()

    async def reset_encoder_cache(self) -> None:
        _not_here()

    async def reset_prefix_cache(self, *_: Any, **__: Any) -> bool:
        _not_here()

    async def sleep(self, *_: Any, **__: Any) -> None:
        _not_here()

    async def release_kv_cache_memory(self) -> None:
        _not_here()

    async def wake_up(self, *_: Any, **__: Any) -> bool:
        _not_here()

    async def is_sleeping(self) -> bool:
        return False

    async def add_lora(self, *_: Any, **__: Any) -> bool:
        _not_here()

    async def pause_generation(self, **_: Any) -> None:
        _not_here()

    async def resume_generation(self) -> None:
        _not_here()

    async def is_paused(self) -> bool:
        return False


def _wake(queue: RequestOutputCollector, error: BatonError) -> None:
    queue.put(GenerationError(error.message))


def _not_here() -> NoReturn:
    raise NotImplementedError("an engine's own matter; ask `baton ctl`")
