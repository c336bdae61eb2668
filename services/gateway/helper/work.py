"""What a helper does, by the kind of its job. vLLM is imported only where its classes are needed.

Without vLLM a helper serves plain text alone.
"""

from __future__ import annotations

import asyncio
from typing import Any

from common.clock import SystemClock
from common.config import Config, EngineConfig
from common.engine.vllm.args import prepare_process
from common.errors import BatonError, Code
from common.messages import Structured
from common.model.resolve import model_folder
from services.gateway.api.ignored import IgnoredFields
from services.gateway.api.intake import Intake
from services.gateway.full_api.port import ApiRequest, CheckedBody, Origin
from services.gateway.full_api.shape import checked_fields
from services.gateway.helper.jobs import (
    AnswerJob,
    ApiJob,
    ApiReport,
    Compiled,
    GrammarJob,
    Job,
    PlainJob,
    PlainReport,
    Result,
    ShapeJob,
    ShapeReport,
)
from services.gateway.helper.process import Work, reason_of
from services.gateway.text.light import LightText, light_text


def light(config: Config) -> Work:
    text = light_text(config)

    def work(job: Job) -> Result:
        match job:
            case PlainJob():
                return _plain(config, text, job)
            case ShapeJob():
                return _shape(config, job)
        raise BatonError(Code.INTERNAL, "this helper serves plain text alone")

    return work


def _shape(config: Config, job: ShapeJob) -> ShapeReport:
    refuses = config.gateway.unknown_fields == "refuse"
    checked_fields(job.route, job.body, config.gateway.limits, IgnoredFields(refuses=refuses))
    return ShapeReport()


def _plain(config: Config, text: LightText, job: PlainJob) -> PlainReport:
    async def context() -> int:
        return job.context

    names: list[str] = []
    ignored = IgnoredFields(names.append, refuses=config.gateway.unknown_fields == "refuse")
    intake = Intake(config, text, SystemClock(), context)
    about = (job.kind, job.body, job.request_id, job.deadline_ms)
    work = intake.prepare(*about, ignored, job.adapter)
    return PlainReport(asyncio.run(work), names)


def pooling(config: Config) -> Work:
    """All of a pooling model. Raises what vLLM raises where its classes cannot be used."""
    prepare_process(EngineConfig(threads=1), 1)
    from services.gateway.full_api.vllm.build import build_pooling

    pools = build_pooling(config, model_folder(config))

    def work(job: Job) -> Result:
        match job:
            case ShapeJob():
                return _shape(config, job)
            case ApiJob():
                return ApiReport(asyncio.run(pools.check(job.route, job.body, job.context)))
            case AnswerJob():
                about = ApiRequest(job.route, job.body, Origin(job.request_id))
                written = pools.answer(about, job.checked, job.deltas, job.context)
                return ApiReport(CheckedBody(answer=asyncio.run(written)))
        raise BatonError(Code.INTERNAL, "this helper is of a pooling model")

    return work


def vllm(config: Config) -> Work:
    """Everything. Raises what vLLM raises where its classes cannot be used."""
    if config.model.pools:
        return pooling(config)
    prepare_process(EngineConfig(threads=1), 1)
    from services.gateway.full_api.vllm.build import build_helper

    text = light_text(config)
    checker, writer = build_helper(config, model_folder(config))
    grammars = GrammarCompiler(checker.vllm_config)

    def work(job: Job) -> Result:
        match job:
            case PlainJob():
                return _plain(config, text, job)
            case ShapeJob():
                return _shape(config, job)
            case ApiJob():
                return ApiReport(_checked(checker, job))
            case AnswerJob():
                checker.set_context(job.context)
                about = ApiRequest(job.route, job.body, Origin(job.request_id), job.adapter)
                written = asyncio.run(writer.answer(about, job.checked, job.deltas))
                return ApiReport(CheckedBody(answer=written))
            case GrammarJob():
                return grammars.compile(job.structured)

    return work


def _checked(checker: Any, job: ApiJob) -> CheckedBody:
    work = checker.check(job.route, job.body, job.context, job.images, job.adapter)
    checked: CheckedBody = asyncio.run(work)
    return checked


class GrammarCompiler:
    """Checks and compiles as vLLM does on a worker: the same validators choose the same backend
    with the same options. `made`: vLLM's configuration."""

    def __init__(self, made: Any) -> None:
        from vllm.tokenizers import cached_tokenizer_from_config
        from vllm.v1.structured_output.backend_guidance import GuidanceBackend
        from vllm.v1.structured_output.backend_outlines import OutlinesBackend
        from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

        self._made = made
        self._tokenizer = cached_tokenizer_from_config(model_config=made.model_config)
        self._about = {
            "tokenizer": self._tokenizer,
            "vocab_size": made.model_config.get_vocab_size(),
        }
        self._xgrammar = XgrammarBackend(made, **self._about)
        self._others = {"guidance": GuidanceBackend, "outlines": OutlinesBackend}

    def compile(self, structured: Structured) -> Compiled:
        """Raises BatonError(INVALID_REQUEST) with the compiler's reason."""
        from services.gateway.api.bounds import PARAM

        try:
            self._compile(structured)
        except MemoryError:
            raise
        except Exception as error:
            sentence = f"{PARAM}: {reason_of(error)}"
            raise BatonError(Code.INVALID_REQUEST, sentence, param=PARAM) from error
        return Compiled()

    def _compile(self, structured: Structured) -> None:
        from vllm import SamplingParams
        from vllm.v1.structured_output.request import get_structured_output_key

        from common.engine.vllm.sampling import structured_params

        made = self._made
        params = SamplingParams(structured_outputs=structured_params(structured))
        params.verify(made.model_config, None, made.structured_outputs_config, self._tokenizer)
        checked = params.structured_outputs
        other = self._others.get(checked._backend)  # noqa: SLF001 - as vLLM's own engine core reads it
        backend = other(made, **self._about) if other is not None else self._xgrammar
        backend.compile_grammar(*get_structured_output_key(checked))
