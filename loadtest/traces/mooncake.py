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
        told = _DECODER.decode(line)
    except msgspec.MsgspecError as error:
        raise BadRowError(str(error)) from error
    if told.hash_ids and len(told.hash_ids) != -(-told.input_length // BLOCK_TOKENS):
        due = -(-told.input_length // BLOCK_TOKENS)
        raise BadRowError(
            f"{len(told.hash_ids)} hash_ids for {told.input_length} tokens, {due} are due"
        )
    at = told.timestamp / 1000
    return checked(Row(at, told.input_length, told.output_length, told.hash_ids))
