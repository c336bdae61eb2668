import json
from pathlib import Path

import jinja2.sandbox
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.model.byte_tokenizer import (
    BOS,
    BOS_ID,
    EOS,
    EOS_ID,
    PAD,
    PAD_ID,
    SPECIALS,
    VOCAB_SIZE,
    build_tokenizer,
    byte_symbols,
    write_tokenizer,
)

TOKENIZER = build_tokenizer()
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(ANY_TEXT.filter(lambda text: "<|" not in text))
def test_ids_are_the_utf8_bytes_and_come_back_as_the_text(text: str) -> None:
    encoding = TOKENIZER.encode(text)
    assert encoding.ids == list(text.encode())
    assert TOKENIZER.decode(encoding.ids) == text


@given(st.binary())
def test_every_byte_string_decodes_as_utf8_with_replacement(data: bytes) -> None:
    assert TOKENIZER.decode(list(data)) == data.decode(errors="replace")


def test_every_byte_has_its_own_symbol() -> None:
    assert len(set(byte_symbols())) == 256
    assert [TOKENIZER.token_to_id(symbol) for symbol in byte_symbols()] == list(range(256))


def test_special_tokens_follow_the_bytes() -> None:
    assert [TOKENIZER.token_to_id(text) for text in SPECIALS] == list(range(256, VOCAB_SIZE))
    assert TOKENIZER.get_vocab_size() == VOCAB_SIZE
    assert TOKENIZER.encode(BOS + EOS + PAD).ids == [BOS_ID, EOS_ID, PAD_ID]
    assert TOKENIZER.decode([BOS_ID, ord("a"), EOS_ID]) == "a"


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        (
            [{"role": "user", "content": "hi"}],
            "<|bos|><|user|>hi<|eos|><|assistant|>",
        ),
        (
            [
                {"role": "developer", "content": "be\nkind "},
                {"role": "assistant", "content": None},
                {"role": "tool", "content": "7"},
            ],
            "<|bos|><|system|>be\nkind <|eos|><|assistant|><|eos|><|tool|>7<|eos|><|assistant|>",
        ),
    ],
)
def test_the_chat_template_marks_roles(
    tmp_path: Path, messages: list[dict[str, str | None]], text: str
) -> None:
    write_tokenizer(tmp_path, 8192)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    # As transformers and vLLM set the environment up.
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(settings["chat_template"])
    rendered = template.render(
        messages=messages,
        bos_token=settings["bos_token"],
        eos_token=settings["eos_token"],
        add_generation_prompt=True,
    )
    assert rendered == text
