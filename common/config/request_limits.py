"""`[gateway.limits]`: how much one request, or one key, may ask for."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from common.config.base import Count, Section


class RequestLimits(Section, frozen=True):
    """Bounds on what one request may ask for. A request over one is refused by name.

    A structure is what the text must match: a JSON schema, a regex, a list of choices, a grammar or
    a structural tag. It is compiled in a process of its own."""

    n_max: Count = 128
    """Choices (`n`) of one request."""
    stop_strings_max: Count = 16
    """Stop strings of one request."""
    stop_string_chars_max: Count = 1024
    """Characters of one stop string."""
    schema_bytes_max: Annotated[int, Meta(ge=1, le=512 << 10)] = 128 << 10
    """Bytes of a structure, as JSON or text. A frame on the wire holds twice the upper limit."""
    schema_depth_max: Count = 80
    """Nested objects and arrays of a structure. vLLM takes 64 levels, and 80 in a structural
    tag."""
    regex_chars_max: Count = 16_384
    """Characters of a regex."""
    choices_max: Count = 1024
    """Choices of a structure that is a list of choices."""
    grammar_ms_max: Annotated[float, Meta(ge=10)] = 5_000.0
    """Time that compiling a structure may take; the process is killed then."""
    grammar_mib_max: Annotated[int, Meta(ge=64)] = 1024
    """MiB of memory that compiling a structure may take."""
    grammars_per_key_max: Count = 8
    """Structures of one API key that compile or wait for it in one gateway. Structures that were
    compiled before do not count."""
