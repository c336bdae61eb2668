"""Loads LoRA adapters into vLLM's engine, and lets them go.

vLLM would load an adapter by itself in the step that needs it, and a step that fails ends the
engine. An adapter that is loaded beforehand, between two steps, can fail alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from common.engine.adapters import Adapter
from common.engine.vllm.args import engine_failed, first_line
from common.errors import ConfigError
from common.model.adapters import name_of_adapter

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest
    from vllm.v1.engine.core_client import AsyncMPClient


class VllmAdapters:
    """An `AdapterLoader`."""

    def __init__(self, client: AsyncMPClient) -> None:
        self._client = client

    async def load(self, adapter: Adapter) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            await self._client.add_lora_async(lora_request(adapter))
        except EngineDeadError as error:
            raise engine_failed(error) from error
        except Exception as error:
            await self.unload(adapter)  # it may be there in part
            sentence = f"vLLM cannot load it: {first_line(error)}"
            raise ConfigError(f"adapters.{name_of_adapter(adapter.id)}.path", sentence) from error

    async def unload(self, adapter: Adapter) -> None:
        try:
            await self._client.remove_lora_async(adapter.number)
        except Exception as error:
            raise engine_failed(error) from error


def lora_request(adapter: Adapter) -> LoRARequest:
    """vLLM hashes name and path into each block of KV; the name that it gets has the digest."""
    from vllm.lora.request import LoRARequest

    return LoRARequest(adapter.id, adapter.number, str(Path(adapter.path).expanduser()))
