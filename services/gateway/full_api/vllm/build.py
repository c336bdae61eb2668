"""Builds the full API from vLLM's classes: seconds of import, about 600 MiB, no engine."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from common.config import Config, EngineConfig
from common.engine.vllm.args import prepare_process
from common.errors import ConfigError
from common.model.embedded import EMBEDDED_MODEL_NAME
from services.gateway.full_api.port import Checks, CloseStream, FullApi, OpenStream

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from services.gateway.full_api.vllm.checking import BodyChecker
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
    try:
        from services.gateway.full_api.vllm.client import FleetClient
        from services.gateway.full_api.vllm.prepared import use_prompts
        from services.gateway.full_api.vllm.serving import VllmApi
    except ImportError as error:
        raise ConfigError("gateway.text", f"vLLM cannot be imported here: {error}") from error
    try:
        made = vllm_config(config, model)
        limits = config.gateway.limits
        client = FleetClient(made, config.model.served_name, checks.grammar, limits, open_, close)
        use_prompts(client.renderer)
        api = VllmApi(config, root, client, checks)
    except (ValueError, TypeError, KeyError, OSError, RuntimeError) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise ConfigError("gateway.text", f"vLLM cannot serve this model: {lines[0]}") from error
    logging.getLogger("vllm").setLevel(logging.CRITICAL)
    return api


def build_helper(config: Config, model: Path) -> tuple[BodyChecker, AnswerWriter]:
    """In a helper process, or anywhere apart from the full API itself. Raises what vLLM raises
    where its classes cannot be used."""
    from services.gateway.full_api.vllm.checking import BodyChecker
    from services.gateway.full_api.vllm.client import FleetClient
    from services.gateway.full_api.vllm.prepared import use_prompts
    from services.gateway.full_api.vllm.serving import VllmApi
    from services.gateway.full_api.vllm.writing import AnswerWriter

    made, limits = vllm_config(config, model), config.gateway.limits
    writer = AnswerWriter()
    name = config.model.served_name
    client = FleetClient(made, name, writer.compiles, limits, writer.open, writer.close)
    writer.api = api = VllmApi(config, "", client)
    checker = BodyChecker(api, config)
    use_prompts(client.renderer)
    return checker, writer


def vllm_config(config: Config, model: Path) -> VllmConfig:
    """The configuration that vLLM's own render server makes: no engine, KV cache or kernels."""
    from vllm import AsyncEngineArgs
    from vllm.config import VllmConfig

    embedded = config.model.path == EMBEDDED_MODEL_NAME and config.model.dtype == "auto"
    arguments = AsyncEngineArgs(
        model=str(model),
        served_model_name=[config.model.served_name],
        dtype="float32" if embedded else config.model.dtype,
        max_model_len=config.model.max_model_len or None,
        reasoning_parser=config.model.reasoning_parser,
        enforce_eager=True,
    )
    model_config = arguments.create_model_config()
    model_config.quantization = None
    return VllmConfig(
        model_config=model_config,
        structured_outputs_config=arguments.create_structured_outputs_config(),
    )
