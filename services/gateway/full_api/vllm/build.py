"""Builds the full API from vLLM's classes: seconds of import, about 600 MiB, no engine."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from common.config import Config, EngineConfig
from common.engine.vllm.args import as_vllm_takes, prepare_process
from common.engine.vllm.argument_table import TEXT_ARGUMENTS
from common.errors import ConfigError
from common.model.embedded import EMBEDDED_MODEL_NAME
from services.gateway.full_api.port import Checks, CloseStream, FullApi, OpenStream
from services.gateway.full_api.vllm.quiet import quietly

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from services.gateway.full_api.vllm.checking import BodyChecker
    from services.gateway.full_api.vllm.pooling import PoolingWork
    from services.gateway.full_api.vllm.writing import AnswerWriter


def build(
    config: Config,
    model: Path,
    root: str,
    checks: Checks,
    open_: OpenStream,
    close: CloseStream,
) -> FullApi:
    """Blocks; call it on a thread of its own. `root`: what /v1/models gives as the place of the
    model's files. vLLM's own log lines about requests are switched off because they hold prompt
    text. Raises ConfigError when vLLM is not installed or cannot use the model."""
    prepare_process(EngineConfig(threads=1), 1)
    with quietly():
        api = _built(config, model, root, checks, open_, close)
    logging.getLogger("vllm").setLevel(logging.CRITICAL)
    return api


def _built(
    config: Config,
    model: Path,
    root: str,
    checks: Checks,
    open_: OpenStream,
    close: CloseStream,
) -> FullApi:
    try:
        from services.gateway.full_api.vllm.client import FleetClient
        from services.gateway.full_api.vllm.prepared import use_prompts
        from services.gateway.full_api.vllm.serving import VllmApi
    except ImportError as error:
        raise ConfigError("gateway.text", f"vLLM cannot be imported here: {error}") from error
    try:
        made = vllm_config(config, model, language_model_only=True)
        limits = config.gateway.limits
        client = FleetClient(made, config.model.served_name, checks.grammar, limits, open_, close)
        api = VllmApi(config, root, client, checks)
        use_prompts(api)
        return api
    except (ValueError, TypeError, KeyError, AttributeError, OSError, RuntimeError) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise ConfigError("gateway.text", f"vLLM cannot serve this model: {lines[0]}") from error


def build_helper(config: Config, model: Path) -> tuple[BodyChecker, AnswerWriter]:
    """In a helper process, or anywhere apart from the full API itself. Raises what vLLM raises
    where its classes cannot be used."""
    from services.gateway.full_api.vllm.checking import BodyChecker
    from services.gateway.full_api.vllm.client import FleetClient
    from services.gateway.full_api.vllm.images import CONNECTOR
    from services.gateway.full_api.vllm.prepared import use_prompts
    from services.gateway.full_api.vllm.serving import VllmApi
    from services.gateway.full_api.vllm.writing import AnswerWriter

    os.environ["VLLM_MEDIA_CONNECTOR"] = CONNECTOR
    made, limits = vllm_config(config, model), config.gateway.limits
    writer = AnswerWriter()
    name = config.model.served_name
    client = FleetClient(made, name, writer.compiles, limits, writer.open, writer.close)
    writer.api = api = VllmApi(config, "", client)
    checker = BodyChecker(api, config)
    use_prompts(api)
    return checker, writer


def build_pooling(config: Config, model: Path) -> PoolingWork:
    """In a helper process of a pooling model. Raises what vLLM raises."""
    from services.gateway.full_api.vllm.pooling import PooledClient, PoolingWork
    from services.gateway.full_api.vllm.writing import AnswerWriter

    idle, name = AnswerWriter(), config.model.served_name
    made, limits = vllm_config(config, model, language_model_only=True), config.gateway.limits
    client = PooledClient(made, name, idle.compiles, limits, idle.open, idle.close)
    return PoolingWork(config, client, "embed" if config.model.task == "embed" else "classify")


def vllm_config(config: Config, model: Path, *, language_model_only: bool = False) -> VllmConfig:
    """The configuration that vLLM's own render server makes: no engine, KV cache or kernels.
    `language_model_only`: nothing that processes images is loaded."""
    from vllm import AsyncEngineArgs
    from vllm.config import VllmConfig

    embedded = config.model.path == EMBEDDED_MODEL_NAME and config.model.dtype == "auto"
    given = as_vllm_takes(config.model_args)
    text = {name: given[name] for name in TEXT_ARGUMENTS if name in given}
    text["language_model_only"] = language_model_only or text.get("language_model_only", False)
    text["limit_mm_per_prompt"] = text.get("limit_mm_per_prompt", {}) | {"video": 0, "audio": 0}
    arguments = AsyncEngineArgs(
        **text,
        model=str(model),
        served_model_name=[config.model.served_name],
        dtype="float32" if embedded else config.model.dtype,
        max_model_len=config.model.max_model_len or None,
        reasoning_parser=config.model.reasoning_parser,
        runner="pooling" if config.model.pools else "auto",
        enforce_eager=True,
        mm_processor_cache_gb=0,
    )
    model_config = arguments.create_model_config()
    model_config.quantization = None
    return VllmConfig(
        model_config=model_config,
        structured_outputs_config=arguments.create_structured_outputs_config(),
    )
