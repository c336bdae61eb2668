"""Mooncake's JSONL (FAST25-release/traces): milliseconds, lengths, and ids of prefix blocks."""

from __future__ import annotations

import msgspec

from loadtest.traces.rows import BadRowError, Row, checked

BLOCK_TOKENS = 512
"""Tokens that one of `hash_ids` stands for; the last one may stand for fewer."""


class _Line(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


_DECODER = msgspec.json.Decoder(_Line)


def parse(line: str) -> Row:
    """`at` in seconds since the trace began. Raises BadRowError."""
    try:
        fields = _DECODER.decode(line)
    except msgspec.MsgspecError as error:
        raise BadRowError(str(error)) from error
    if fields.hash_ids and len(fields.hash_ids) != -(-fields.input_length // BLOCK_TOKENS):
        due = -(-fields.input_length // BLOCK_TOKENS)
        raise BadRowError(
            f"{len(fields.hash_ids)} hash_ids for {fields.input_length} tokens, {due} are due"
        )
    at = fields.timestamp / 1000
    return checked(Row(at, fields.input_length, fields.output_length, fields.hash_ids))
