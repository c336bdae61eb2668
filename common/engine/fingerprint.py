"""The fingerprint: it is equal for workers whose KV blocks are the same, byte for byte.

Each part is a short readable text, so that a difference can be named; a long value is hashed. The
fingerprint itself is a hash over all parts, and the *meaning* one over those that are not in
`LAYOUT_PARTS`. Workers whose meanings are equal and whose layouts are not may still hand prompts
over, in the canonical form (`common/kv/canonical.py`). The *lossy meaning* leaves out the element
types too, between which KV is converted where both workers consent to it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

SHORT_CHARS = 48
LAYOUT_PARTS = frozenset(
    {"args.attention_backend", "attn_isa", "block_tokens", "device", "drafter", "drafter_config"}
    | {"kv_heads", "kv_layout", "tensor_parallel"}
)
"""Parts that only say how KV lies in memory, on what and over which ranks, and what lies beside the
model's."""
ELEMENT_PARTS = frozenset({"dtype", "kv_dtype"})
"""Parts that say in which element type the model computes and keeps KV."""


def parts_of(values: Mapping[str, object]) -> dict[str, str]:
    """For each value its text, or a hash where the text is long or structured."""
    return {key: _text(value) for key, value in values.items()}


def fingerprint_of(parts: Mapping[str, str]) -> str:
    """32 hex digits."""
    encoded = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(encoded.encode()).hexdigest()[:32]


def meaning_of(parts: Mapping[str, str]) -> str:
    """As `fingerprint_of`, over what KV means."""
    return fingerprint_of({key: parts[key] for key in parts.keys() - LAYOUT_PARTS})


def lossy_meaning_of(parts: Mapping[str, str]) -> str:
    """As `meaning_of`, but for the precision of KV."""
    return meaning_of({key: parts[key] for key in parts.keys() - ELEMENT_PARTS})


def _text(value: object) -> str:
    if isinstance(value, (str, int, float, bool)) and len(str(value)) <= SHORT_CHARS:
        return str(value)
    encoded = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(encoded.encode()).hexdigest()[:12]
