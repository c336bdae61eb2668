"""Incremental detokenizers.

Theory of operation: in a byte-level vocabulary (GPT-2, Llama 3, Qwen, the embedded model) every
token is a fixed run of bytes. A table that is built once has each token's text as a str where its
bytes are complete characters, and as bytes otherwise, which are joined over tokens. Most tokens
then cost one list lookup. Other vocabularies go through the DecodeStream of tokenizers, primed with
the prompt as vLLM does.
"""

from __future__ import annotations

from codecs import utf_8_decode

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

INVALID_PREFIX = "Invalid prefix encountered"
PRIMING_TOKENS = 16

Pieces = list[str | bytes]


def _byte_of_symbol() -> dict[str, int]:
    """GPT-2's table: byte-level BPE writes each byte as one printable character."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    table.update((chr(256 + n), byte) for n, byte in enumerate(others))
    return table


def byte_level_pieces(tokenizer: Tokenizer) -> Pieces:
    """Each token's text or bytes, by id, for a tokenizer whose decoder is ByteLevel. Special tokens
    and unused ids are empty."""
    bytes_of = _byte_of_symbol()
    special = {
        token for token, added in tokenizer.get_added_tokens_decoder().items() if added.special
    }
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    pieces: Pieces = [""] * (max(vocabulary.values(), default=-1) + 1)
    for text, token in vocabulary.items():
        if token in special:
            continue
        try:
            raw = bytes([bytes_of[symbol] for symbol in text])
        except KeyError:
            raw = text.encode()
        try:
            pieces[token] = raw.decode()
        except UnicodeDecodeError:
            pieces[token] = raw
    return pieces


class ByteLevelDetokenizer:
    """Of one stream; `pieces` is shared by all streams."""

    __slots__ = ("_pending", "_pieces")

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        #: Bytes that are not a complete character yet.
        self._pending = b""

    def push(self, token_ids: list[int]) -> str:
        if len(token_ids) == 1 and not self._pending:
            try:
                piece = self._pieces[token_ids[0]]
            except IndexError:
                return ""
            if type(piece) is str:
                return piece
        return self._join(token_ids)

    def flush(self) -> str:
        pending, self._pending = self._pending, b""
        return pending.decode(errors="replace")

    def _join(self, token_ids: list[int]) -> str:
        raw = [self._pending]
        for token in token_ids:
            piece = self._pieces[token] if 0 <= token < len(self._pieces) else b""
            raw.append(piece.encode() if isinstance(piece, str) else piece)
        data = b"".join(raw)
        text, consumed = utf_8_decode(data, "replace", False)
        self._pending = data[consumed:]
        return text


class DecodeStreamDetokenizer:
    """Any tokenizer; slower. Never raises for a token id."""

    __slots__ = ("_decoded", "_pending", "_stream", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, prompt_ids: list[int]) -> None:
        self._tokenizer = tokenizer
        #: The latest ids whose text is out, of the prompt at first.
        self._decoded = prompt_ids[-PRIMING_TOKENS:]
        self._stream = DecodeStream(ids=self._decoded, skip_special_tokens=True)
        self._pending: list[int] = []

    def push(self, token_ids: list[int]) -> str:
        return "".join([self._step(token) for token in token_ids])

    def flush(self) -> str:
        if not self._pending:
            return ""
        before = self._tokenizer.decode(self._decoded, skip_special_tokens=True)
        after = self._tokenizer.decode([*self._decoded, *self._pending], skip_special_tokens=True)
        self._pending = []
        return after[len(before) :] if after.startswith(before) else ""

    def _step(self, token: int) -> str:
        self._pending.append(token)
        try:
            text = self._stream.step(self._tokenizer, token)
        except (OverflowError, TypeError):
            self._pending.pop()
            return ""
        except Exception as error:
            if not str(error).startswith(INVALID_PREFIX):
                raise
            self._stream = DecodeStream(skip_special_tokens=True)
            text = self._stream.step(self._tokenizer, token)
        if not text:
            return ""
        self._decoded = [*self._decoded, *self._pending][-PRIMING_TOKENS:]
        self._pending = []
        return text
