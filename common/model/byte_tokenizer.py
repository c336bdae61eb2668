"""The embedded model's tokenizer: one token per UTF-8 byte, its id the byte's value.

Thus n bytes of text are n tokens and every string round-trips. The model's text tokenizes back to
the ids that were sampled, so a second turn hits the prefix cache of the first. Special tokens
follow the 256 bytes. A plain completion gets no BOS; the chat template writes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

BYTE_COUNT: Final = 256
BOS: Final = "<|bos|>"
EOS: Final = "<|eos|>"
PAD: Final = "<|pad|>"
ROLES: Final = ("system", "user", "assistant", "tool")
SPECIALS: Final = (BOS, EOS, PAD, *(f"<|{role}|>" for role in ROLES))
BOS_ID: Final = BYTE_COUNT
EOS_ID: Final = BYTE_COUNT + 1
PAD_ID: Final = BYTE_COUNT + 2
VOCAB_SIZE: Final = BYTE_COUNT + len(SPECIALS)

CHAT_TEMPLATE: Final = """\
{{- bos_token }}
{%- for message in messages %}
    {%- set role = 'system' if message['role'] == 'developer' else message['role'] %}
    {{- '<|' + role + '|>' + (message['content'] or '') + eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>' }}
{%- endif %}
"""


def byte_symbols() -> list[str]:
    """The printable character that stands for each byte in byte-level BPE (GPT-2's table)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    symbols = {byte: chr(byte) for byte in shown}
    hidden = (byte for byte in range(BYTE_COUNT) if byte not in symbols)
    symbols.update((byte, chr(BYTE_COUNT + n)) for n, byte in enumerate(hidden))
    return [symbols[byte] for byte in range(BYTE_COUNT)]


def build_tokenizer() -> Tokenizer:
    vocabulary = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIALS])
    return tokenizer


def write_tokenizer(folder: Path, context_tokens: int) -> None:
    """Writes tokenizer.json and tokenizer_config.json, as Hugging Face loaders expect them."""
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "model_max_length": context_tokens,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer.json").write_text(build_tokenizer().to_str(pretty=True))
    config = msgspec.json.format(msgspec.json.encode(settings), indent=2)
    (folder / "tokenizer_config.json").write_bytes(config)
