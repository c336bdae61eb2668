"""The vLLM engine: vLLM's EngineCore in a forked child, used through its own async client.

Theory of operation: a request goes through vLLM's `InputProcessor` (validation, EOS and stop
tokens) and then to EngineCore. EngineCore returns one `EngineCoreOutputs` per engine step, which
becomes one `Batch`. The gateway detokenizes. The KV thread in the child reports handoffs over the
side channel, which wakes `next_batch`, as outputs do. What has been reported by then goes before
the tokens: on a busy machine a stream may have ended before the loop comes to the report of its
handoff. A request whose KV is handed over samples one token, which is dropped. Where layers keep
the KV of a part of the tokens only, P does not compute the prompt's last token: it would move the
window, and a state would contain it. Nor with latent attention, whose KV differs in its last digits
with the length of the prefill on CPU.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from common.engine.adapters import Adapter, AdapterTable, not_held
from common.engine.leaving import Leaving, Left
from common.engine.port import Batch, EngineInfo, EngineRequest, Output, engine_key
from common.engine.probe import Probe
from common.engine.vllm.adapter_loader import lora_request
from common.engine.vllm.args import engine_failed
from common.engine.vllm.images import engine_input
from common.engine.vllm.kv_events import watch_of
from common.engine.vllm.outputs import drafts_of, ending, ids_to_compute, prompt_counts
from common.engine.vllm.prefetch import PrefetchOrders
from common.engine.vllm.sampling import (
    logprobs_of,
    pooled_of,
    pooling_params,
    prompt_logprobs_of,
    refuse_lost_state,
    sampling_params,
)
from common.errors import BatonError, Code, ConfigError
from common.kv.daemon_link.ranks import RankSideChannels
from common.kv.messages import (
    KvConnect,
    KvCopied,
    KvCopyAhead,
    KvDone,
    KvHandOver,
    KvKeep,
    KvOrder,
    KvRelease,
    KvStatus,
)
from common.messages import (
    AdapterStatus,
    CopyAhead,
    FinishReason,
    Load,
    OrderStore,
    PrefixDelta,
    Role,
    Ticket,
)
from common.net.endpoints import KV_EVENTS
from common.net.sockets import Socket
from common.telemetry.rolling_p99 import RollingP99

if TYPE_CHECKING:
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
    from vllm.v1.engine.core_client import AsyncMPClient
    from vllm.v1.engine.input_processor import InputProcessor

CLOSE_SECONDS = 3.0
TASKS = ("generate",)
QUESTION, RELEASE = "is_sleeping", "release_kv_pages"
HANDOFF_ENDED: Any = object()
"""In the client's output queue: wakes `next_batch`."""


class VllmEngine:
    """It is made by `common.engine.vllm.open` before the loop starts, and used on one loop.
    EngineCore publishes KV events at `events_address`; none if that is empty."""

    def __init__(
        self,
        info: EngineInfo,
        client: AsyncMPClient,
        processor: InputProcessor,
        side: RankSideChannels,
        events_address: str = "",
        clock: Callable[[], float] = time.monotonic,
        *,
        adapters: AdapterTable | None = None,
    ) -> None:
        self._info = info
        self._adapters = adapters
        self._client = client
        self._processor = processor
        self._side = side
        self._events_address = events_address
        self._events: Socket | None = None
        self._prefixes = watch_of(info.capacity)
        self._prefetches = PrefetchOrders(processor, info.capacity, self._prefixes, side.send)
        stores = processor.vllm_config.cache_config.enable_prefix_caching
        #: Tokens of a block of the prefix cache; 0: the engine keeps none.
        self._stored_block = info.capacity.block_tokens if stores else 0
        self._clock = clock
        self._active: dict[str, EngineRequest] = {}
        self._load = Load()
        self._stepped_at = clock()
        self._steps = RollingP99()
        self._probe = Probe(self._ask, clock)
        self._leaving = Leaving(client.call_utility_async, client.outputs_queue.put_nowait)
        #: Ends of handoffs that `next_batch` has not returned yet.
        self._ended: list[KvDone] = []
        self._attached, self._closed = False, False

    @property
    def info(self) -> EngineInfo:
        return self._info

    def load(self) -> Load:
        busy = self._clock() - self._stepped_at if self._active else self._probe.stuck_seconds
        load = self._load
        return Load(
            running=load.running,
            waiting=load.waiting,
            kv_used=load.kv_used,
            step_age_ms=busy * 1000,
            step_ms_p99=self._steps.p99_ms(),
            silent_ms=self._probe.silent_seconds * 1000,
        )

    async def add(self, request: EngineRequest) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        self._attach()
        if request.key in self._active:
            raise BatonError(Code.DUPLICATE_REQUEST, f"{request.key} is already in the engine")
        self._info.check(request)
        refuse_lost_state(request, self._processor.vllm_config, self._info.capacity)
        adapter = await self._used_adapter(request)
        try:
            core_request = self._processed(request, adapter)
        except BatonError:
            self._release_adapter(request)
            raise
        if not self._active:
            self._stepped_at = self._clock()
        self._active[request.key] = replace(request, images=())
        self._prefetches.arrived(request.request_id, request.attempt)
        try:
            await self._client.add_request_async(core_request)
        except EngineDeadError as error:
            self._active.pop(request.key, None)
            raise engine_failed(error) from error

    async def abort(self, request_id: str, attempt: int) -> None:
        self._attach()
        key = engine_key(request_id, attempt)
        why = "aborted by the daemon"
        self._side.send(KvRelease(request_id=request_id, attempt=attempt, reason=why))
        if self._take_away(key) is not None:
            await self._client.abort_requests_async([key])

    def leave(self, request_id: str, attempt: int) -> None:
        self._leaving.add(engine_key(request_id, attempt))

    def adapters(self) -> tuple[AdapterStatus, ...]:
        return self._adapters.statuses() if self._adapters is not None else ()

    async def load_adapter(self, name: str, path: str) -> None:
        self._attach()
        await self._adapter_table().add(name, path)

    async def unload_adapter(self, name: str) -> None:
        self._attach()
        await self._adapter_table().remove(name)

    def hand_over(self, ticket: Ticket, kept_attempt: int) -> None:
        self._attach()
        self._side.send(KvHandOver(ticket=ticket, kept_attempt=kept_attempt))

    def prefetch(self, request: EngineRequest) -> None:
        self._attach()
        self._prefetches.order(request)

    def copy_ahead(self, order: CopyAhead) -> None:
        self._attach()
        self._side.send(KvCopyAhead(**msgspec.structs.asdict(order)))

    def connect_kv(self, kv_address: str) -> None:
        self._attach()
        self._side.send(KvConnect(kv_address=kv_address))

    def order_store(self, order: OrderStore) -> None:
        self._side.send(KvOrder(action=order.action, ends=self._prefixes.ends_of(order.names)))

    def kv_status(self) -> KvStatus | None:
        return self._side.status

    def prefix_cache_delta(self, *, whole: bool) -> Iterable[PrefixDelta]:
        return self._prefixes.deltas(whole=whole)

    async def sleep(self) -> bool:
        """vLLM's sleep level 1: on a device the weights go to host memory and the KV is given up.
        On CPU, where vLLM ignores it, the pages of the KV are given back to the host."""
        self._attach()
        try:
            if self._active or not await self._client.reset_prefix_cache_async():
                return False
            await self._client.sleep_async(1)
            if self._processor.vllm_config.parallel_config.worker_extension_cls:
                await self._client.collective_rpc_async(RELEASE)
        except Exception as error:
            raise engine_failed(error) from error
        return True

    async def wake(self) -> None:
        self._attach()
        try:
            if await self._client.is_sleeping_async():
                await self._client.wake_up_async()
        except Exception as error:
            raise engine_failed(error) from error

    async def next_batch(self) -> Batch:
        from vllm.v1.engine.exceptions import EngineDeadError

        self._attach()
        while True:
            try:
                arrived: Any = await self._client.get_output_async()
            except EngineDeadError as error:
                raise BatonError(Code.ENGINE_FAILED, "the engine process has died") from error
            except Exception as error:
                raise engine_failed(error) from error
            if isinstance(arrived, Left):
                return Batch(left=self._left(arrived))
            outputs = None if arrived is HANDOFF_ENDED else self._batch(arrived)
            self._side.deliver_waiting()
            ended, self._ended = self._ended, []
            if outputs is not None or ended:
                return replace(outputs or Batch(), kv_done=ended)

    async def watch(self) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        self._attach()
        try:
            await asyncio.gather(self._probe.run(), self._leaving.run())
        except EngineDeadError as error:
            raise BatonError(Code.ENGINE_FAILED, "the engine process has died") from error
        except Exception as error:
            raise engine_failed(error) from error

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._side.close()
        if self._events is not None:
            self._events.close()
        await asyncio.to_thread(self._client.shutdown, CLOSE_SECONDS)

    async def _ask(self) -> None:
        """Asks EngineCore something that costs nothing, and ignores the answer."""
        await self._client.call_utility_async(QUESTION)

    def _attach(self) -> None:
        """Starts the side channel and the KV events at the first call on the daemon's loop."""
        if not self._attached:
            self._attached = True
            self._side.start(self._on_handoff_ended, self._on_copied)
            if self._events_address:
                self._events = Socket(
                    KV_EVENTS, connect=self._events_address, on_frames=self._prefixes.on_frames
                )
                self._events.start()

    def _left(self, keys: Iterable[str]) -> list[str]:
        """Those that have not ended before. Their KV is kept from here on."""
        left = [request for key in keys if (request := self._take_away(key)) is not None]
        for taken in left:
            self._side.send(KvKeep(request_id=taken.request_id, attempt=taken.attempt))
        return [taken.key for taken in left]

    def _take_away(self, key: str) -> EngineRequest | None:
        """A request that no output comes for any more; None if there is no such request."""
        request = self._active.pop(key, None)
        if request is not None:
            self._release_adapter(request)
            if not self._active:
                self._probe.on_requests_taken(self._stepped_at)
        return request

    def _on_handoff_ended(self, done: KvDone) -> None:
        self._ended.append(done)
        self._client.outputs_queue.put_nowait(HANDOFF_ENDED)

    def _on_copied(self, copied: KvCopied) -> None:
        self._prefixes.on_copied(copied)
        if copied.ahead and not self._active:
            self._probe.ask_now()

    def _adapter_table(self) -> AdapterTable:
        """Raises ConfigError where the engine serves no adapters."""
        if self._adapters is None:
            sentence = "this worker serves no adapters; set it to true and restart the worker"
            raise ConfigError("engine.args.enable_lora", sentence)
        return self._adapters

    async def _used_adapter(self, request: EngineRequest) -> Adapter | None:
        """Raises BatonError(ADAPTER_NOT_HELD | ENGINE_FAILED)."""
        if not request.adapter:
            return None
        if self._adapters is None:
            raise not_held(request.adapter)
        return await self._adapters.use(request.adapter, request.key)

    def _release_adapter(self, request: EngineRequest) -> None:
        if request.adapter and self._adapters is not None:
            self._adapters.release(request.key)

    def _processed(self, request: EngineRequest, adapter: Adapter | None) -> Any:
        from vllm.exceptions import VLLMError

        ids, pooling = ids_to_compute(request, self._info.capacity.kv_groups), request.pooling
        try:
            made = self._processor.process_inputs(
                request.key,
                engine_input(ids, request),
                sampling_params(request, resume_sampler=self._info.capacity.restores)
                if pooling is None
                else pooling_params(pooling),
                TASKS if pooling is None else (pooling.task,),
                lora_request=lora_request(adapter) if adapter is not None else None,
            )
        except (VLLMError, ValueError, TypeError) as error:
            raise BatonError(Code.INVALID_REQUEST, str(error).splitlines()[0]) from error
        if request.role is Role.DECODE:
            made.reasoning_ended = request.sampling.reasoning_ended
            made.reasoning_parser_kwargs = request.sampling.reasoning_kwargs
        return made

    def _batch(self, step: EngineCoreOutputs) -> Batch | None:
        """None if the step brought nothing that anyone waits for."""
        now = self._clock()
        self._steps.add(now - self._stepped_at)
        self._stepped_at = now
        self._probe.on_step()
        before, stats = self._load, step.scheduler_stats
        if stats is not None:
            self._load = Load(
                running=stats.num_running_reqs,
                waiting=stats.num_waiting_reqs + stats.num_skipped_waiting_reqs,
                kv_used=stats.kv_cache_usage,
            )
        outputs = [output for made in step.outputs if (output := self._output(made)) is not None]
        if not outputs and self._load == before:
            return None
        drafts = drafts_of(stats) if stats is not None else None
        return Batch(outputs=outputs, load=self._load, drafts=drafts)

    def _output(self, made: EngineCoreOutput) -> Output | None:
        """None for an output that nobody waits for. This runs once per token."""
        request = self._active.get(made.request_id)
        if request is None:
            return None
        finish = error = message = ""
        tokens, stop_token = made.new_token_ids, -1
        if made.finish_reason is not None:
            del self._active[made.request_id]
            self._release_adapter(request)
            finish, error = ending(made, request.role)
            message = "the engine gave this request up" if error else ""
            if finish == FinishReason.STOP and tokens:
                stop_token = tokens[-1]
        if request.role is Role.PREFILL:
            if not finish and not error:
                return None
            tokens = []
        cached, handed_over, stored = prompt_counts(made.prefill_stats, self._stored_block)
        return Output(
            made.request_id,
            tokens,
            finish,
            stop_token,
            cached,
            error,
            message,
            logprobs_of(made),
            prompt_logprobs_of(made),
            handed_over,
            stored,
            pooled_of(made) if made.pooling_output is not None else b"",
        )
