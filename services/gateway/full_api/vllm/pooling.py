"""What a helper process does for a pooling model, with vLLM's own serving classes.

`check` has them read a body and render its prompts; the gateway has these computed. `answer` runs
the same classes once more from the beginning: they get the prompts where they would render them,
and where they would call the engine what workers made of each. A helper does one job at a time.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import torch
from msgspec.structs import replace
from pydantic import BaseModel, TypeAdapter, ValidationError
from vllm.entrypoints.openai.models.protocol import BaseModelPath
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.pooling.classify.protocol import ClassificationRequest
from vllm.entrypoints.pooling.classify.serving import ServingClassification
from vllm.entrypoints.pooling.embed.protocol import EmbeddingRequest
from vllm.entrypoints.pooling.embed.serving import ServingEmbedding
from vllm.entrypoints.pooling.pooling.protocol import PoolingRequest
from vllm.entrypoints.pooling.pooling.serving import ServingPooling
from vllm.entrypoints.pooling.scoring.protocol import RerankRequest, ScoreRequest
from vllm.entrypoints.pooling.scoring.serving import ServingScores
from vllm.entrypoints.pooling.typing import PoolingEngineInput
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.entrypoints.serve.tokenize.protocol import DetokenizeRequest, TokenizeRequest
from vllm.entrypoints.serve.tokenize.serving import ServingTokenization
from vllm.inputs import tokens_input
from vllm.outputs import PoolingOutput, PoolingRequestOutput
from vllm.renderers.chat_utils import ChatTemplateConfig
from vllm.renderers.online_renderer import OnlineRenderer

from common.config import Config
from common.engine.vllm.sampling import SECOND_TEXT
from common.errors import BatonError, Code
from common.messages import Delta, Pooling
from services.gateway.api.bounds import check_size
from services.gateway.api.ignored import IgnoredFields
from services.gateway.api.routes import RERANKS, SCORES, Route
from services.gateway.full_api.fields import known_fields, session_of
from services.gateway.full_api.media import count_images
from services.gateway.full_api.port import ApiRequest, CheckedBody, Origin, Recorded, RenderedPrompt
from services.gateway.full_api.shape import checked_fields
from services.gateway.full_api.vllm.client import FleetClient
from services.gateway.full_api.vllm.errors import from_response, from_validation
from services.gateway.full_api.vllm.serving import answer_bytes, as_bad_request
from services.gateway.text.template import read_template

CONTENT_FORMAT = "auto"
#: A number in base64 has 5.3 bytes, as text about 21.
BASE64_FACTOR = 4
_delta = msgspec.msgpack.Decoder(Delta).decode


class PooledClient(FleetClient):
    """vLLM's `EngineClient` whose engine has computed everything already. `pooled`: what was made
    of each prompt, in order."""

    pooled: Iterator[Delta]

    def encode(self, prompt: Any, *, request_id: str, **_: Any) -> Any:
        return self._encoded(prompt, request_id, next(self.pooled))

    async def _encoded(
        self, prompt: Any, request_id: str, delta: Delta
    ) -> AsyncGenerator[Any, None]:
        numbers = torch.from_numpy(np.frombuffer(delta.pooled, "<f4").copy())
        yield PoolingRequestOutput(
            request_id,
            PoolingOutput(numbers),
            list(prompt["prompt_token_ids"]),
            delta.cached_tokens,
            finished=True,
        )


class PoolingWork:
    """The jobs of such a helper. `task`: the word that vLLM has for it, embed or classify."""

    def __init__(self, config: Config, client: PooledClient, task: str) -> None:
        self._client = client
        self._limits = config.gateway.limits
        about_model = client.model_config
        #: Numbers that are made of a prompt.
        self._width = (
            about_model.embedding_size if task == "embed" else about_model.hf_config.num_labels
        )
        self._refuses_unknown = config.gateway.unknown_fields == "refuse"
        names = (config.model.served_name, *config.model.aliases)
        models = OpenAIServingModels(client, [BaseModelPath(name=n, model_path="") for n in names])
        template = read_template(config.model.chat_template)
        about: dict[str, Any] = {
            "request_logger": None,
            "chat_template_config": ChatTemplateConfig(
                chat_template=template, chat_template_content_format=CONTENT_FORMAT
            ),
        }
        tasks: dict[str, Any] = {"supported_tasks": (task,)}
        self._servings: dict[Route, tuple[Any, TypeAdapter[Any]]] = {}
        self._add(Route.POOLING, ServingPooling(client, models, **tasks, **about), PoolingRequest)
        if task == "embed":
            self._add(Route.EMBEDDINGS, ServingEmbedding(client, models, **about), EmbeddingRequest)
        else:
            classes = ServingClassification(client, models, **about)
            self._add(Route.CLASSIFY, classes, ClassificationRequest)
        if config.model.task != "classify":
            scores = ServingScores(client, models, **tasks, **about)
            for route in RERANKS:
                self._add(route, scores, RerankRequest)
            for route in SCORES:
                self._add(route, scores, ScoreRequest)
        self._tokens = _tokenization(client, models, template)
        for serving in {id(one): one for one, _ in self._servings.values()}.values():
            for processor in _processors(serving):
                self._give_prompts(processor)
        #: None while vLLM is to render.
        self._prompts: Iterator[RenderedPrompt] | None = None

    def _add(self, route: Route, serving: Any, request: Any) -> None:
        self._servings[route] = (serving, TypeAdapter(request))

    async def check(self, route: Route, body: bytes, context: int) -> CheckedBody:
        """Raises BatonError for what is wrong with the body."""
        names: list[str] = []
        ignored = IgnoredFields(names.append, refuses=self._refuses_unknown)
        given = checked_fields(route, body, self._limits, ignored)
        count_images(route, given, self._limits, takes_images=False)
        self._set_context(context)
        if route in (Route.TOKENIZE, Route.DETOKENIZE):
            checked = CheckedBody(answer=await self._tokenized(route, body))
        else:
            _check_length(given, context)
            known = msgspec.json.encode(known_fields(route, given))
            checked = await self._rendered(ApiRequest(route, known, Origin("check")))
        return replace(checked, session=session_of(route, given), ignored=names)

    async def answer(
        self, api_request: ApiRequest, checked: CheckedBody, pooled: Recorded, context: int
    ) -> bytes:
        """Raises BatonError."""
        self._set_context(context)
        serving, requests = self._servings[api_request.route]
        self._client.pooled = iter([_delta(pooled[str(at)][0]) for at in range(len(pooled))])
        self._prompts = iter(checked.prompts)
        try:
            response = await serving(requests.validate_json(checked.body), _raw(api_request))
        except Exception as error:
            sentence = f"the answer could not be written ({type(error).__name__})"
            raise BatonError(Code.INTERNAL, sentence) from error
        finally:
            self._prompts = None
        return bytes(response.body)

    async def _rendered(self, api_request: ApiRequest) -> CheckedBody:
        serving, requests = self._servings[api_request.route]
        try:
            request = requests.validate_json(api_request.body)
            processor = serving.get_io_processor(request)
            context = await serving._init_ctx(processor, request, _raw(api_request))  # noqa: SLF001
            await serving._preprocessing(processor, context)  # noqa: SLF001 - it has no other name
            context.pooling_params.verify(self._client.model_config)
            for made in context.engine_inputs:
                ids = made["prompts"]["prompt_token_ids"]
                self._client.renderer.validate_token_ids(ids, parameter="input")
        except ValidationError as error:
            raise from_validation(error) from error
        except Exception as error:
            raise as_bad_request(api_request, error) from error
        prompts = [
            RenderedPrompt(list(made["prompts"]["prompt_token_ids"]), pooling=_pooling(made))
            for made in context.engine_inputs
        ]
        compares = api_request.route in (*RERANKS, *SCORES)
        self._check_prompts("documents" if compares else "input", prompts)
        if not compares:
            self._check_numbers(request, len(prompts))
        return CheckedBody(
            body=api_request.body,
            prompts=prompts,
            cache_salt=request.cache_salt or "",
            priority=request.priority,
        )

    def _check_prompts(self, param: str, prompts: list[RenderedPrompt]) -> None:
        counts, most = [len(prompt.token_ids) for prompt in prompts], self._limits
        if 0 in counts:
            sentence = f"{param}: of prompt {counts.index(0)} no token is left to be computed"
            raise BatonError(Code.INVALID_REQUEST, sentence, param=param)
        tokens = sum(counts)
        check_size(param, "prompt tokens", tokens, most.prompt_tokens_max, "prompt_tokens_max")
        check_size(param, "prompts", len(prompts), most.inputs_max, "inputs_max")

    def _check_numbers(self, request: Any, prompts: int) -> None:
        """Before they are computed, since an answer with more could not be written in time."""
        numbers = prompts * (getattr(request, "dimensions", None) or self._width)
        most, what = self._limits.pooled_numbers_max, "numbers in the answer"
        encoding = getattr(request, "encoding_format", "")
        if encoding == "base64":
            most *= BASE64_FACTOR
        elif encoding:
            what += ' that is not in "base64"'
        check_size("input", what, numbers, most, "pooled_numbers_max")

    async def _tokenized(self, route: Route, body: bytes) -> bytes:
        about = ApiRequest(route, body, Origin("check"))
        try:
            if route is Route.TOKENIZE:
                asked: Any = TypeAdapter(TokenizeRequest).validate_json(body)
                answer = await self._tokens.create_tokenize(asked, _raw(about))
            else:
                asked = TypeAdapter(DetokenizeRequest).validate_json(body)
                answer = await self._tokens.create_detokenize(asked, _raw(about))
        except ValidationError as error:
            raise from_validation(error) from error
        except Exception as error:
            raise as_bad_request(about, error) from error
        if isinstance(answer, ErrorResponse):
            raise from_response(answer)
        assert isinstance(answer, BaseModel)
        return answer_bytes(route, answer)

    def _set_context(self, tokens: int) -> None:
        self._client.model_config.max_model_len = tokens
        for serving, _ in self._servings.values():
            serving.max_model_len = tokens

    def _give_prompts(self, processor: Any) -> None:
        """From now on it takes the prompts of a job where it would render one."""
        render = processor.render_async

        async def prompt(params: Any) -> Any:
            if self._prompts is None:
                return await render(params)
            ids = next(self._prompts).token_ids
            return PoolingEngineInput(
                prompts=tokens_input(ids),
                params=params["params"],
                lora_requests=None,
                priorities=0,
            )

        processor.render_async = prompt


def _check_length(given: dict[str, Any], context: int) -> None:
    """Before vLLM's classes try each token id as everything else that an input may have. Raises
    BatonError."""
    given_input = given.get("input")
    inputs = given_input if isinstance(given_input, list) else []
    prompts = [inputs] if isinstance(next(iter(inputs), ""), int) else inputs
    longest = max((len(ids) for ids in prompts if isinstance(ids, list)), default=0)
    if longest > context and given.get("truncate_prompt_tokens") is None:
        sentence = (
            f"input has {longest} tokens, but this model's maximum context length is {context}; "
            "shorten it, or say where to cut it (truncate_prompt_tokens)"
        )
        raise BatonError(Code.CONTEXT_LENGTH_EXCEEDED, sentence, param="input")


def _processors(serving: Any) -> list[Any]:
    """vLLM's class for a body that says its task itself has one for each task."""
    if isinstance(serving, ServingPooling):
        return list(serving.io_processors.values())
    return [serving.io_processor]


def _tokenization(
    client: PooledClient, models: OpenAIServingModels, template: str | None
) -> ServingTokenization:
    text: dict[str, Any] = {
        "chat_template": template,
        "chat_template_content_format": CONTENT_FORMAT,
        "request_logger": None,
    }
    renderer = OnlineRenderer(model_config=client.model_config, renderer=client.renderer, **text)
    return ServingTokenization(models, renderer, **text)


def _pooling(made: Any) -> Pooling:
    params = made["params"]
    if params.task not in ("embed", "classify"):
        sentence = f"the task {params.task!r} is not served; use the model's own"
        raise BatonError(Code.UNSUPPORTED_PARAMETER, sentence, param="task")
    return Pooling(
        task=params.task,
        dimensions=params.dimensions,
        use_activation=params.use_activation,
        second_text_at=(params.extra_kwargs or {}).get(SECOND_TEXT),
    )


def _raw(api_request: ApiRequest) -> Any:
    headers = {"X-Request-Id": api_request.origin.request_id}
    return SimpleNamespace(headers=headers, state=SimpleNamespace())
