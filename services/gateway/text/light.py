"""Text by tokenizers and jinja2 alone, read from the model's folder in well under a second.

It serves plain text. Requests with tools, schemas or reasoning go to the full API, or are refused
by name, before they get here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel

from common.config import Config
from common.errors import BatonError, Code, ConfigError
from common.model.checkpoint import read_model_config
from common.model.resolve import model_folder, tokenizer_folder
from services.gateway.text.detokenizer import (
    ByteLevelDetokenizer,
    DecodeStreamDetokenizer,
    byte_level_pieces,
)
from services.gateway.text.port import Detokenizer, SamplingDefaults
from services.gateway.text.template import ChatTemplate, read_template

TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


def light_text(config: Config) -> LightText:
    """Of the fleet's model, with the engine arguments that concern text. Raises ConfigError."""
    folder, given = model_folder(config), config.model_args
    return LightText(
        tokenizer_folder(config),
        model=read_model_config(folder, given.get("hf_overrides")),
        defaults=_sampling(folder, given.get("generation_config", "auto"))
        | given.get("override_generation_config", {}),
        template=read_template(config.model.chat_template),
    )


def _sampling(folder: Path, generation_config: str) -> dict[str, Any]:
    """The engine argument is `auto` for the model's own file, `vllm` for none, or a folder."""
    if generation_config == "vllm":
        return {}
    chosen = folder if generation_config == "auto" else Path(generation_config)
    return _read(chosen / "generation_config.json")


class LightText:
    """`folder` has the tokenizer, and by default also what else is not given: `model` (its
    config.json), `defaults` (its generation_config.json) and `template`. Raises ConfigError when
    the tokenizer cannot be used."""

    def __init__(
        self,
        folder: Path,
        *,
        model: dict[str, Any] | None = None,
        defaults: dict[str, Any] | None = None,
        template: str | None = None,
    ) -> None:
        path = folder / "tokenizer.json"
        try:
            self._tokenizer: Tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:
            raise ConfigError(
                "model.path", f"{path} cannot be read as a tokenizer: {error}"
            ) from error
        config = _read(folder / "tokenizer_config.json")
        special = {**_read(folder / "special_tokens_map.json"), **config}
        tokens = {name: _token(special.get(name)) for name in TOKEN_NAMES}
        self._bos = self._missing_bos(config, tokens["bos_token"])
        source = template or _template_source(folder, config)
        known = {name: token for name, token in tokens.items() if token}
        self._template = ChatTemplate(source, known) if source else None
        if model is None:
            model = _read(folder / "config.json")
        if defaults is None:
            defaults = _read(folder / "generation_config.json")
        self._vocab_size = max(
            self._tokenizer.get_vocab_size(with_added_tokens=True), _number(model, "vocab_size")
        )
        self._context = _number(model, "max_position_embeddings")
        self._takes_images = isinstance(model.get("vision_config"), dict)
        self._defaults = _defaults(defaults)
        self._token_chars_max = max(map(len, self._tokenizer.get_vocab()), default=1)
        byte_level = isinstance(self._tokenizer.decoder, ByteLevel)
        self._pieces = byte_level_pieces(self._tokenizer) if byte_level else None

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def context(self) -> int:
        return self._context

    @property
    def defaults(self) -> SamplingDefaults:
        return self._defaults

    @property
    def takes_images(self) -> bool:
        return self._takes_images

    def render_chat(self, messages: Sequence[dict[str, Any]]) -> str:
        if self._template is None:
            raise BatonError(
                Code.INVALID_REQUEST,
                "this model has no chat template; use /v1/completions",
                param="messages",
            )
        return self._template.render(messages)

    def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        ids = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return [*self._bos, *ids] if add_special_tokens and self._bos else list(ids)

    def tokens_min(self, text: str) -> int:
        return len(text) // self._token_chars_max

    def detokenizer(self, prompt_ids: list[int]) -> Detokenizer:
        if self._pieces is not None:
            return ByteLevelDetokenizer(self._pieces)
        return DecodeStreamDetokenizer(self._tokenizer, prompt_ids)

    def _missing_bos(self, config: dict[str, Any], bos: str) -> list[int]:
        """The BOS token, where the model's configuration wants one (`add_bos_token`) and
        tokenizer.json does not add it. Hugging Face adds it too."""
        token = self._tokenizer.token_to_id(bos) if bos else None
        if token is None or config.get("add_bos_token") is not True:
            return []
        ids = self._tokenizer.encode("a", add_special_tokens=True).ids
        return [] if ids[:1] == [token] else [token]


def _read(path: Path) -> dict[str, Any]:
    """A JSON object, empty when there is no such file."""
    try:
        value = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError("model.path", f"{path} cannot be read: {error}") from error
    return value if isinstance(value, dict) else {}


def _token(value: object) -> str:
    """A token is written as a string or as an AddedToken object."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _number(config: dict[str, Any], key: str) -> int:
    text = config.get("text_config")
    inner = text if isinstance(text, dict) else {}
    value = config.get(key, inner.get(key, 0))
    return value if isinstance(value, int) else 0


def _template_source(folder: Path, config: dict[str, Any]) -> str:
    file = folder / "chat_template.jinja"
    source = file.read_text(encoding="utf-8") if file.is_file() else config.get("chat_template")
    if isinstance(source, list):
        named = {entry.get("name"): entry.get("template") for entry in source}
        source = named.get("default")
    return source if isinstance(source, str) else ""


def _defaults(config: dict[str, Any]) -> SamplingDefaults:
    known = {
        field: config[field]
        for field in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        if isinstance(config.get(field), int | float)
    }
    return SamplingDefaults(**known)
