"""From a request body to a `RequestSpec`: checked against the model, rendered, tokenized."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from common.clock import Clock
from common.config import Config
from common.errors import BatonError, Code
from common.messages import Sampling
from common.net.wire import FRAME_BYTES_MAX
from services.gateway.api.bounds import check_stops
from services.gateway.api.ignored import IgnoredFields
from services.gateway.api.kinds import Kind, RequestSpec, priority_class
from services.gateway.api.parse import parse, refuse
from services.gateway.api.request_bodies import (
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
)
from services.gateway.text.port import TextPort

T = TypeVar("T", int, float)

PROMPT_TOKENS_MAX = (FRAME_BYTES_MAX - 65_536) // 4
COMPLETION_TOKENS_DEFAULT = 16
DEADLINE_MS_MAX = 86_400_000.0
BIAS_MAX = 100.0
SESSION_ID = re.compile(r"[!-~]{1,128}")
REQUEST_ID = re.compile(r"[A-Za-z0-9._:@/+=-]{1,96}")


def client_id(header: str | None) -> str | None:
    """The client's x-request-id; None where it is not a short plain token."""
    return header if header is not None and REQUEST_ID.fullmatch(header) else None


def request_id(client: str | None) -> str:
    """An id that is unique in the fleet. The client's id is only a prefix of it, because proxies
    repeat theirs, and tokens of an earlier request must never be taken for a later one's."""
    return f"{client}-{secrets.token_hex(4)}" if client else secrets.token_hex(16)


def session_id(header: str | None) -> str:
    """Of x-session-id; empty: none. Raises BatonError(INVALID_REQUEST)."""
    if not header:
        return ""
    if SESSION_ID.fullmatch(header):
        return header
    raise BatonError(
        Code.INVALID_REQUEST,
        "x-session-id must be at most 128 visible ASCII characters",
        param="x-session-id",
    )


def hinted_session(*hints: object) -> str:
    """Of the body's hints, the first that says something; empty: none does. One that is no session
    id itself becomes one by its digest."""
    for hint in hints:
        if isinstance(hint, str) and hint:
            if SESSION_ID.fullmatch(hint):
                return hint
            return hashlib.blake2b(hint.encode(errors="replace"), digest_size=16).hexdigest()
    return ""


def wants_timings(header: str | None) -> bool:
    """Of x-timings. Raises BatonError(INVALID_REQUEST)."""
    if header not in {None, "0", "1"}:
        sentence = "x-timings must be 1 (timings in the answer) or 0"
        raise BatonError(Code.INVALID_REQUEST, sentence, param="x-timings")
    return header == "1"


def deadline_ms(header: str | None) -> float:
    """Of x-deadline-ms; 0: none. Raises BatonError(INVALID_REQUEST)."""
    if header is None:
        return 0.0
    if re.fullmatch(r"\d{1,9}(\.\d{1,6})?", header) and 0 < float(header) <= DEADLINE_MS_MAX:
        return float(header)
    raise BatonError(
        Code.INVALID_REQUEST,
        f"x-deadline-ms must be milliseconds, more than 0 and at most {DEADLINE_MS_MAX:.0f}",
        param="x-deadline-ms",
    )


class Intake:
    """`context` waits for the fleet's max_model_len. Its work grows with the body: the gateway
    itself gives it short ones, and a helper process all others."""

    def __init__(
        self,
        config: Config,
        text: TextPort,
        clock: Clock,
        context: Callable[[], Awaitable[int]],
    ) -> None:
        self._config = config
        self._text = text
        self._clock = clock
        self._context = context

    async def prepare(
        self,
        kind: Kind,
        body: bytes,
        request_id: str,
        deadline_ms: float,
        ignored: IgnoredFields,
        adapter: str = "",
    ) -> RequestSpec:
        """`adapter`: id of the one that the body asks for. Raises BatonError for a client's
        mistake."""
        request = parse(kind, body, ignored)
        if not adapter:
            self.check_model(request.model)
        context = await self._context()
        prompt_ids = self._prompt(request, context)
        sampling = self._sampling(request, len(prompt_ids), context)
        options = request.stream_options
        stream = bool(request.stream)
        if options is not None and not stream:
            raise BatonError(
                Code.INVALID_REQUEST,
                "stream_options is only allowed when stream is true",
                param="stream_options",
            )
        stop = request.stop or ()
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        check_stops(stops, self._config.gateway.limits)
        return RequestSpec(
            kind=kind,
            request_id=request_id,
            model=self._config.model.served_name,
            created=self._clock.unix_ms() // 1000,
            prompt_ids=prompt_ids,
            sampling=sampling,
            deadline_ms=deadline_ms,
            stops=tuple(dict.fromkeys(stops)),
            include_stop=bool(request.include_stop_str_in_output),
            stream=stream,
            include_usage=bool(options and options.include_usage),
            continuous_usage=bool(
                options and options.include_usage and options.continuous_usage_stats
            ),
            return_token_ids=bool(request.return_token_ids),
            priority=priority_class(request.priority or 0),
            session=hinted_session(request.session_id, request.prompt_cache_key),
            cache_salt=request.cache_salt or "",
            adapter=adapter,
        )

    def check_model(self, model: str | None) -> None:
        served = self._config.model.served_name
        if model is not None and model not in (served, *self._config.model.aliases):
            raise BatonError(
                Code.MODEL_NOT_FOUND,
                f"the model {model[:96]!r} does not exist; this server serves {served!r}",
                param="model",
            )

    def _prompt(self, request: GenerationRequest, context: int) -> list[int]:
        if isinstance(request, ChatRequest):
            param = "messages"
            text = self._text.render_chat([_message(message) for message in request.messages])
            ids = self._tokenized(text, param, context, special=request.add_special_tokens is True)
        else:
            param = "prompt"
            prompt = _one_prompt(request)
            if isinstance(prompt, str):
                special = request.add_special_tokens is not False
                ids = self._tokenized(prompt, param, context, special=special)
            else:
                ids = self._checked_ids(prompt, param)
        if not ids:
            raise BatonError(Code.INVALID_REQUEST, f"{param} must not be empty", param=param)
        if len(ids) >= context or len(ids) > PROMPT_TOKENS_MAX:
            raise _too_long(str(len(ids)), context, param)
        return ids

    def _tokenized(self, text: str, param: str, context: int, *, special: bool) -> list[int]:
        if self._text.tokens_min(text) >= context:
            raise _too_long(f"at least {self._text.tokens_min(text)}", context, param)
        try:
            return self._text.tokenize(text, add_special_tokens=special)
        except UnicodeEncodeError as error:
            raise BatonError(
                Code.INVALID_REQUEST, f"{param} holds a lone surrogate", param=param
            ) from error

    def _checked_ids(self, ids: list[int], param: str) -> list[int]:
        worst = max(ids, default=0)
        if worst >= self._text.vocab_size:
            raise BatonError(
                Code.INVALID_REQUEST,
                f"{param}: token id {worst} is out of the vocabulary of {self._text.vocab_size}",
                param=param,
            )
        return ids

    def _sampling(self, request: GenerationRequest, prompt_tokens: int, context: int) -> Sampling:
        defaults = self._text.defaults
        max_tokens = self._max_tokens(request, prompt_tokens, context)
        min_tokens = request.min_tokens or 0
        if min_tokens > max_tokens:
            raise BatonError(
                Code.INVALID_REQUEST,
                f"min_tokens must not exceed max_tokens, which is {max_tokens}",
                param="min_tokens",
            )
        stop_token_ids = tuple(self._checked_ids(request.stop_token_ids or [], "stop_token_ids"))
        bias = request.logit_bias or None
        if bias is not None:
            self._checked_ids(list(bias), "logit_bias")
            bias = {token: min(BIAS_MAX, max(-BIAS_MAX, value)) for token, value in bias.items()}
        return Sampling(
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            temperature=_or(request.temperature, defaults.temperature),
            top_p=_or(request.top_p, defaults.top_p),
            top_k=max(0, _or(request.top_k, defaults.top_k)),
            min_p=_or(request.min_p, defaults.min_p),
            presence_penalty=request.presence_penalty or 0.0,
            frequency_penalty=request.frequency_penalty or 0.0,
            repetition_penalty=_or(request.repetition_penalty, defaults.repetition_penalty),
            seed=request.seed,
            ignore_eos=bool(request.ignore_eos),
            stop_token_ids=stop_token_ids,
            logit_bias=bias,
        )

    def _max_tokens(self, request: GenerationRequest, prompt_tokens: int, context: int) -> int:
        room = context - prompt_tokens
        asked = request.max_tokens
        if isinstance(request, ChatRequest):
            asked = request.max_completion_tokens or asked
            default = self._config.gateway.default_max_tokens or room
        else:
            default = COMPLETION_TOKENS_DEFAULT
        if asked is None:
            return min(default, room)
        if asked > room:
            raise BatonError(
                Code.CONTEXT_LENGTH_EXCEEDED,
                f"this model's maximum context length is {context} tokens; {prompt_tokens} in the "
                f"prompt and {asked} asked for the completion are {prompt_tokens + asked}",
                param="max_tokens",
            )
        return asked


def _one_prompt(request: CompletionRequest) -> str | list[int]:
    prompt = request.prompt
    if isinstance(prompt, str):
        return prompt
    first = prompt[0] if prompt else ""
    if not isinstance(first, int):
        if len(prompt) > 1:
            refuse("prompt", "several prompts in one request are not supported by this server")
        return first
    ids = [token for token in prompt if isinstance(token, int)]
    if len(ids) != len(prompt):
        raise BatonError(
            Code.INVALID_REQUEST, "prompt mixes token ids with other things", param="prompt"
        )
    return ids


def _message(message: ChatMessage) -> dict[str, Any]:
    """The message as a chat template gets it. Text parts are joined by newlines, as vLLM does."""
    content = message.content
    if isinstance(content, list):
        content = "\n".join(part.text or "" for part in content if not isinstance(part, str))
    rendered: dict[str, Any] = {"role": message.role, "content": content or ""}
    if message.name is not None:
        rendered["name"] = message.name
    if message.role == "tool" and message.tool_call_id is not None:
        rendered["tool_call_id"] = message.tool_call_id
    reasoning = message.reasoning if message.reasoning is not None else message.reasoning_content
    if message.role == "assistant" and reasoning is not None:
        rendered["reasoning"] = rendered["reasoning_content"] = reasoning
    if message.task is not None:
        rendered["task"] = message.task
    return rendered


def _too_long(tokens: str, context: int, param: str) -> BatonError:
    return BatonError(
        Code.CONTEXT_LENGTH_EXCEEDED,
        f"this model's maximum context length is {context} tokens, and the prompt has {tokens}, "
        "which leaves no room for a completion",
        param=param,
    )


def _or(value: T | None, default: T) -> T:
    return default if value is None else value
