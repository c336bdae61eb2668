"""`[gateway.limits]`: how much one request, or one key, may ask for."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from common.config.base import Count, Section


class RequestLimits(Section, frozen=True):
    """`n_max`: choices of one request. `stop_strings_max`, `stop_string_chars_max`: of `stop`.

    Of what the text must match (a schema, regex, choices, grammar or structural tag):
    `schema_bytes_max` as JSON or text, half a frame at most; `schema_depth_max`: levels of objects
    and arrays, vLLM takes 64 (80 in a structural tag); `regex_chars_max`; `choices_max`;
    `grammar_ms_max`: to compile it, in a process of its own that is killed then;
    `grammar_mib_max`: memory it may take for that; `grammars_per_key_max`: those of one key that
    compile or wait for it in one gateway, not counting those that compiled before."""

    n_max: Count = 128
    stop_strings_max: Count = 16
    stop_string_chars_max: Count = 1024
    schema_bytes_max: Annotated[int, Meta(ge=1, le=512 << 10)] = 128 << 10
    schema_depth_max: Count = 80
    regex_chars_max: Count = 16_384
    choices_max: Count = 1024
    grammar_ms_max: Annotated[float, Meta(ge=10)] = 5_000.0
    grammar_mib_max: Annotated[int, Meta(ge=64)] = 1024
    grammars_per_key_max: Count = 8
