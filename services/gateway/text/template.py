"""Chat templates as Hugging Face renders them: sandboxed jinja2, the same globals and filters.

A template comes from the model's folder and runs in a sandbox: it reaches no private attribute and
no import, and changes nothing. A conversation that it refuses is the client's mistake (400).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from common.errors import BatonError, Code, ConfigError

REASON_CHARS_MAX = 200


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text for training; here it renders its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own contract

    def parse(self, parser: Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def _raise_exception(message: object) -> NoReturn:
    raise jinja2.TemplateError(str(message))


def _to_json(value: object, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


def read_template(path: str) -> str | None:
    """The text of `model.chat_template`; None where none is named. Raises ConfigError."""
    if not path:
        return None
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("model.chat_template", f"{path} cannot be read: {error}") from error


class ChatTemplate:
    """Raises ConfigError when the source does not compile. `tokens`: bos_token, eos_token, ..."""

    def __init__(self, source: str, tokens: dict[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._tokens = tokens
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ConfigError(
                "model.path", f"its chat template does not compile: {error}"
            ) from error

    def render(self, messages: Sequence[dict[str, Any]]) -> str:
        """Raises BatonError(INVALID_REQUEST) with the template's own sentence."""
        try:
            return self._template.render(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._tokens,
            )
        except jinja2.TemplateError as error:
            reason = (error.message or type(error).__name__)[:REASON_CHARS_MAX]
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
            reason = type(error).__name__
        raise BatonError(
            Code.INVALID_REQUEST,
            f"the model's chat template refuses these messages: {reason}",
            param="messages",
        )
