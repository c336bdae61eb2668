"""Incremental detokenization says what decoding everything at once says."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from common.model.byte_tokenizer import VOCAB_SIZE, build_tokenizer
from services.gateway.text.detokenizer import (
    ByteLevelDetokenizer,
    DecodeStreamDetokenizer,
    byte_level_pieces,
)

EMBEDDED = build_tokenizer()
EMBEDDED_PIECES = byte_level_pieces(EMBEDDED)


def _merged() -> Tokenizer:
    """A byte-level BPE whose merges cross the bytes of characters, with odd added tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["née 😀😁 €uro naïve 日本語 😀é€"] * 30, trainer)
    tokenizer.add_special_tokens([AddedToken("<end>")])
    tokenizer.add_tokens([AddedToken("hé llo 😀", special=False)])
    return tokenizer


def _byte_fallback() -> Tokenizer:
    """Llama-2 style: pieces with ▁, bytes as <0xNN>, one leading space stripped."""
    vocabulary = {"<unk>": 0} | {f"<0x{byte:02X}>": byte + 1 for byte in range(256)}
    for piece in ("▁", "a", "b", "▁a", "ab", "é"):
        vocabulary[piece] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


MERGED = _merged()
MERGED_PIECES = byte_level_pieces(MERGED)
FALLBACK = _byte_fallback()


def runs(ids: list[int], cuts: list[int]) -> list[list[int]]:
    bounds = sorted({0, *(min(cut, len(ids)) for cut in cuts), len(ids)})
    return [ids[a:b] for a, b in itertools.pairwise(bounds)]


CUTS = st.lists(st.integers(0, 60), max_size=10)


@given(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=40), CUTS)
def test_any_ids_of_the_embedded_tokenizer(ids: list[int], cuts: list[int]) -> None:
    """Random bytes: mostly not valid UTF-8."""
    detokenizer = ByteLevelDetokenizer(EMBEDDED_PIECES)
    text = "".join(detokenizer.push(run) for run in runs(ids, cuts)) + detokenizer.flush()
    assert text == EMBEDDED.decode(ids, skip_special_tokens=True)


@given(st.lists(st.integers(0, MERGED.get_vocab_size() - 1), max_size=30), CUTS)
def test_any_ids_of_a_merged_vocabulary(ids: list[int], cuts: list[int]) -> None:
    detokenizer = ByteLevelDetokenizer(MERGED_PIECES)
    text = "".join(detokenizer.push(run) for run in runs(ids, cuts)) + detokenizer.flush()
    assert text == MERGED.decode(ids, skip_special_tokens=True)


@given(st.lists(st.sampled_from([0x41, 0x82, 0xAC, 0xC3, 0xE2, 0xF0, 256]), max_size=8))
def test_token_by_token(ids: list[int]) -> None:
    detokenizer = ByteLevelDetokenizer(EMBEDDED_PIECES)
    text = "".join(detokenizer.push([token]) for token in ids) + detokenizer.flush()
    assert text == EMBEDDED.decode(ids, skip_special_tokens=True)


@given(st.text(max_size=30), CUTS)
def test_no_replacement_character_for_text_that_becomes_whole(text: str, cuts: list[int]) -> None:
    for tokenizer, pieces in ((EMBEDDED, EMBEDDED_PIECES), (MERGED, MERGED_PIECES)):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        detokenizer = ByteLevelDetokenizer(pieces)
        out = ""
        for run in runs(ids, cuts):
            out += detokenizer.push(run)
            assert text.startswith(out) or tokenizer is MERGED
        assert out + detokenizer.flush() == tokenizer.decode(ids, skip_special_tokens=True)
        assert ("\ufffd" in out) == ("\ufffd" in text)


@pytest.mark.parametrize("ids", [[10_000], [72, 10_000, 105], [10_000, 10_001]])
def test_ids_outside_the_vocabulary_say_nothing(ids: list[int]) -> None:
    known = [token for token in ids if token < VOCAB_SIZE]
    detokenizer = ByteLevelDetokenizer(EMBEDDED_PIECES)
    assert detokenizer.push(ids) + detokenizer.flush() == EMBEDDED.decode(known)


@given(st.text("ab é日😀", max_size=20), CUTS)
def test_decode_stream_tells_the_whole_text_after_the_prompt(text: str, cuts: list[int]) -> None:
    prompt = FALLBACK.encode("ab", add_special_tokens=False).ids
    ids = FALLBACK.encode(text.replace(" ", "▁"), add_special_tokens=False).ids
    detokenizer = DecodeStreamDetokenizer(FALLBACK, prompt)
    out = "".join(detokenizer.push(run) for run in runs(ids, cuts))
    assert "\ufffd" not in out
    assert out + detokenizer.flush() == text


def test_decode_stream_flushes_what_never_became_whole() -> None:
    detokenizer = DecodeStreamDetokenizer(FALLBACK, [])
    vocabulary = FALLBACK.get_vocab()
    assert detokenizer.push([vocabulary["a"], vocabulary["<0xE2>"]]) == "a"
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


@given(st.lists(st.integers(0, FALLBACK.get_vocab_size() + 3), max_size=30))
def test_decode_stream_never_raises(ids: list[int]) -> None:
    detokenizer = DecodeStreamDetokenizer(FALLBACK, [])
    detokenizer.push(ids)
    detokenizer.flush()
