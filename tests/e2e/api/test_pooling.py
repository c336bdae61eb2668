"""Pooling models against vLLM's own server: the same vectors, scores and classes."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from tests.e2e.api.compare import may_differ
from tests.e2e.api.peer import peer
from tests.rigs.fleet import Fleet, fleet
from tests.zoo.pooling import BERT_CLASSIFY, BERT_EMBED, BERT_RERANK, QWEN_EMBED, made

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
MODELS = {
    "bert": BERT_EMBED,
    "qwen": QWEN_EMBED,
    "ranker": BERT_RERANK,
    "classes": BERT_CLASSIFY,
}
EXACT = 1e-5
TEXTS = ["The quick brown fox", "jumps over", "x", "the lazy dog. " * 20]
CHAT = [{"role": "user", "content": "a chat that is a text"}]
Case = tuple[str, dict[str, Any]]
EMBEDDINGS: list[Case] = [
    ("/v1/embeddings", {"input": TEXTS[0]}),
    ("/v1/embeddings", {"input": TEXTS}),
    ("/v1/embeddings", {"input": [5, 6, 7]}),
    ("/v1/embeddings", {"input": [[5, 6, 7], [8]]}),
    ("/v1/embeddings", {"input": TEXTS[0], "use_activation": False}),
    ("/v1/embeddings", {"input": TEXTS[3], "truncate_prompt_tokens": 9}),
    ("/v1/embeddings", {"input": "a long text " * 90, "truncate_prompt_tokens": -1}),
    ("/v1/embeddings", {"input": TEXTS, "encoding_format": "base64", "endianness": "big"}),
    ("/v1/embeddings", {"input": TEXTS, "encoding_format": "base64", "embed_dtype": "float16"}),
    ("/v1/embeddings", {"input": "z" * 512}),
    ("/pooling", {"input": TEXTS[:2]}),
    ("/score", {"queries": TEXTS[0], "documents": TEXTS}),
    ("/v1/rerank", {"query": TEXTS[0], "documents": TEXTS, "top_n": 2}),
    ("/tokenize", {"prompt": TEXTS[0]}),
]
#: Of a model whose vectors may be cut.
SHORT: list[Case] = [
    ("/v1/embeddings", {"input": TEXTS, "dimensions": 32}),
    ("/v1/embeddings", {"input": TEXTS[0], "dimensions": 64, "use_activation": False}),
]
SCORES: list[Case] = [
    ("/score", {"queries": TEXTS[0], "documents": TEXTS}),
    ("/v1/score", {"text_1": TEXTS[:2], "text_2": TEXTS[2:]}),
    ("/score", {"data_1": TEXTS[0], "data_2": TEXTS[1], "use_activation": False}),
    ("/rerank", {"query": TEXTS[0], "documents": TEXTS}),
    ("/v1/rerank", {"query": TEXTS[0], "documents": TEXTS, "top_n": 2}),
    ("/v2/rerank", {"query": TEXTS[0], "documents": TEXTS, "max_tokens_per_doc": 4}),
    ("/classify", {"input": TEXTS}),
]
CLASSES: list[Case] = [
    ("/classify", {"input": TEXTS}),
    ("/classify", {"input": TEXTS[0], "use_activation": False}),
    ("/pooling", {"input": TEXTS[0]}),
]
CASES: dict[str, list[Case]] = {
    "bert": EMBEDDINGS,
    "qwen": [*EMBEDDINGS, *SHORT, ("/v1/embeddings", {"messages": CHAT})],
    "ranker": SCORES,
    "classes": CLASSES,
}
#: What no server may take.
BAD: list[Case] = [
    ("/v1/embeddings", {}),
    ("/v1/embeddings", {"input": []}),
    ("/v1/embeddings", {"input": 7}),
    ("/v1/embeddings", {"input": "z" * 513}),
    ("/v1/embeddings", {"input": "x", "dimensions": 3}),
    ("/v1/embeddings", {"input": "x", "encoding_format": "hex"}),
    ("/v1/embeddings", {"input": "x", "endianness": "middle"}),
    ("/v1/embeddings", {"input": [5, 99_999]}),
    ("/v1/embeddings", {"input": [[5], [99_999]]}),
    ("/v1/embeddings", {"input": [[5], []]}),
    ("/v1/embeddings", {"input": "x", "truncate_prompt_tokens": 513}),
    ("/v1/embeddings", {"input": [5] * 513}),
    ("/pooling", {"input": "x", "task": "sing"}),
    ("/pooling", {"input": "x", "dimensions": 3}),
    ("/score", {"queries": ["a", "b"], "documents": ["a", "b", "c"]}),
    ("/rerank", {"query": "a", "documents": "b", "top_n": -1}),
]


@dataclass(frozen=True)
class Both:
    name: str
    ours: httpx.Client
    theirs: httpx.Client

    def ask(self, path: str, body: dict[str, Any]) -> tuple[httpx.Response, httpx.Response]:
        body = {"model": self.name, **body}
        return self.ours.post(path, json=body), self.theirs.post(path, json=body)


@pytest.fixture(scope="module")
def stack() -> Iterator[Fleet]:
    folders = made(*MODELS.values())
    flags = [
        flag
        for name, folder in zip(MODELS, folders, strict=True)
        for flag in ("--model", str(folder), "--name", name)
    ]
    env = {"OMP_NUM_THREADS": "1", "BATON_ENGINE__ARGS__ENFORCE_EAGER": "true"}
    for name, model in MODELS.items():
        env |= {f"BATON_MODELS__{name.upper()}__TASK": model.task}
        env |= {f"BATON_MODELS__{name.upper()}__DTYPE": "float32"}
    with fleet("--mode", "replicated", *flags, env=env) as running:
        yield running.wait_ready()


@pytest.fixture(scope="module")
def both(request: pytest.FixtureRequest, stack: Fleet) -> Iterator[Both]:
    name = str(request.param)
    (folder,) = made(MODELS[name])
    about = ("--served-model-name", name, "--runner", "pooling")
    with (
        peer(folder, *about) as url,
        httpx.Client(base_url=stack.url, timeout=180) as ours,
        httpx.Client(base_url=url, timeout=180) as theirs,
    ):
        yield Both(name, ours, theirs)


def of_models(*names: str) -> pytest.MarkDecorator:
    """The test asks both servers of each of these."""
    return pytest.mark.parametrize("both", names, indirect=True, scope="module")


def far_apart(ours: Any, theirs: Any, path: str = "") -> list[str]:
    """As `compare.differences`, and numbers may differ by `EXACT` alone."""
    if may_differ(path):
        return []
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        pairs = [(f"{path}.{key}".lstrip("."), ours[key], theirs[key]) for key in ours]
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        both = enumerate(zip(ours, theirs, strict=True))
        pairs = [(f"{path}.{at}", a, b) for at, (a, b) in both]
    elif isinstance(ours, float) and isinstance(theirs, float):
        return [] if abs(ours - theirs) <= EXACT else [f"{path}: {ours} and {theirs}"]
    else:
        return [] if ours == theirs else [f"{path}: {ours!r} and {theirs!r}"]
    return [line for pair in pairs for line in far_apart(pair[1], pair[2], pair[0])]


@of_models(*MODELS)
def test_every_answer_is_the_same(both: Both) -> None:
    for path, body in CASES[both.name]:
        ours, theirs = both.ask(path, body)
        assert theirs.status_code == 200, (path, body, theirs.text)
        assert ours.status_code == 200, (path, body, ours.text)
        assert far_apart(ours.json(), theirs.json()) == [], (path, body)


@of_models("bert", "qwen")
def test_texts_are_told_apart(both: Both) -> None:
    """So that equality means something."""
    ours, _ = both.ask("/v1/embeddings", {"input": TEXTS})
    vectors = np.array([row["embedding"] for row in ours.json()["data"]])
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-3)
    assert np.abs(vectors @ vectors.T - np.eye(len(TEXTS))).max() < 0.999


@of_models("bert")
def test_what_they_refuse_is_refused_with_the_same_status(both: Both) -> None:
    for path, body in BAD:
        ours, theirs = both.ask(path, body)
        assert theirs.status_code in (400, 422), (path, body, theirs.text)
        assert ours.status_code == 400, (path, body, ours.text)
        assert ours.json()["error"]["message"]


@of_models("bert")
def test_a_request_in_base64_has_the_same_numbers(both: Both) -> None:
    asked = {"input": TEXTS, "encoding_format": "base64"}
    ours, theirs = (answer.json()["data"] for answer in both.ask("/v1/embeddings", asked))
    for mine, other in zip(ours, theirs, strict=True):
        numbers = [np.frombuffer(base64.b64decode(x["embedding"]), "<f4") for x in (mine, other)]
        assert numbers[0] == pytest.approx(numbers[1], abs=EXACT)


@pytest.mark.parametrize("encoding", [None, "float", "base64"])
def test_the_openai_client_is_unchanged(stack: Fleet, encoding: Any) -> None:
    """Without an encoding it asks for base64 and decodes it itself."""
    client = openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0, timeout=60)
    more = {} if encoding is None else {"encoding_format": encoding}
    answer = client.embeddings.create(model="bert", input=TEXTS, **more)
    assert [row.index for row in answer.data] == [0, 1, 2, 3]
    assert answer.usage.prompt_tokens == sum(map(len, TEXTS))
    first: Any = answer.data[0].embedding
    if encoding == "base64":
        first = np.frombuffer(base64.b64decode(first), "<f4").tolist()
    plain = httpx.post(
        f"{stack.url}/v1/embeddings", json={"model": "bert", "input": TEXTS[0]}, timeout=60
    )
    assert first == pytest.approx(plain.json()["data"][0]["embedding"], abs=EXACT)


def test_a_model_is_not_asked_for_what_it_is_not_for(stack: Fleet) -> None:
    chat = {"model": "bert", "messages": CHAT}
    for path, body in (
        ("/v1/chat/completions", chat),
        ("/v1/completions", {"model": "ranker", "prompt": "x"}),
        ("/v1/embeddings", {"model": "ranker", "input": "x"}),
        ("/rerank", {"model": "classes", "query": "x", "documents": ["y"]}),
    ):
        answer = httpx.post(stack.url + path, json=body, timeout=60)
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["param"] == "model"
        assert path in error["message"]
