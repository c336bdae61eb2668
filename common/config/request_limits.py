"""`[gateway.limits]`: how much one request, or one key, may ask for. `[limits]`: what a running one
may hold."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from common.config.base import Count, Section

Mib = Annotated[float, Meta(ge=0)]
Class = Literal["interactive", "standard", "batch"]
CLASSES: tuple[Class, ...] = ("interactive", "standard", "batch")


class RequestLimits(Section, frozen=True):
    """Bounds on what one request may ask for. A request over one is refused by name.

    A structure is what the text must match: a JSON schema, a regex, a list of choices, a grammar or
    a structural tag. It is compiled in a process of its own."""

    messages_max: Count = 8_192
    """Messages of a conversation, or items of a response's `input`."""
    parts_max: Count = 16_384
    """Content parts, and calls of tools, in all messages together."""
    tools_max: Count = 512
    """Tools that a request may name."""
    prompts_max: Count = 256
    """Prompts of one completion request."""
    inputs_max: Count = 2_048
    """Prompts of one request to a pooling model: texts to embed, or pairs to score."""
    inputs_ms_max: Annotated[float, Meta(ge=10)] = 3_000.0
    """CPU time that checking such a request may take, instead of `check_ms_max`."""
    inputs_mib_max: Annotated[int, Meta(ge=64)] = 512
    """MiB of memory that it may take, instead of `check_mib_max`."""
    pooled_numbers_max: Count = 2_097_152
    """Numbers in the answer to such a request: its prompts times the numbers that are made of each.
    With `encoding_format = "base64"`, which is shorter and costs less, four times as many."""
    generations_max: Count = 512
    """Answers that one request may ask for: its prompts, or conversations of a batch, times `n`."""
    prompt_tokens_max: Count = 524_288
    """Token ids of all prompts of a request together."""
    json_elements_max: Count = 65_536
    """Members of any one object or array of a body, and of all those within tools, schemas and
    other free fields together. Token ids have a bound of their own."""
    fields_bytes_max: Count = 512 << 10
    """Bytes of a request without its conversation or prompt: its tools, schemas and other fields.
    Where a request needs vLLM's classes, the gateway itself reads these."""
    json_depth_max: Annotated[int, Meta(ge=8, le=500)] = 100
    """Nested objects and arrays of a body."""
    check_ms_max: Annotated[float, Meta(ge=10)] = 750.0
    """CPU time that checking, rendering and tokenizing one request may take. Beyond a few KB, and
    for all but plain text, that happens in a process of its own, which is killed then."""
    check_mib_max: Annotated[int, Meta(ge=64)] = 512
    """MiB of memory that it may take."""
    checks_per_key_max: Count = 128
    """Requests of one API key that wait for such a process in one gateway."""
    answer_ms_max: Annotated[float, Meta(ge=10)] = 5_000.0
    """CPU time that writing an answer with logprobs may take, in the same processes."""
    answer_mib_max: Annotated[int, Meta(ge=64)] = 1024
    """MiB of memory that it may take."""
    stream_prompt_logprobs_max: Count = 2_048
    """Logprobs of prompt tokens that a stream may begin with: prompt tokens times logprobs and one.
    An answer that does not stream may have 32,768."""
    images_max: Annotated[int, Meta(ge=0)] = 16
    """Images of one request; 0 refuses all."""
    image_bytes_max: Count = 5 << 20
    """Bytes of one image's file. Those in the body are within `gateway.body_bytes_max`, too."""
    image_pixels_max: Annotated[int, Meta(ge=1, le=178_956_970)] = 16 << 20
    """Width times height of one image. A larger one is refused before it is decoded."""
    image_features_mib_max: Annotated[int, Meta(ge=1, le=60)] = 24
    """MiB of all images of one request as the model takes them. They go through the router to P and
    D; a 16-bit Qwen2-VL has 12 bytes for each pixel."""
    images_ms_max: Annotated[float, Meta(ge=10)] = 5_000.0
    """CPU time that checking a request with images may take, instead of `check_ms_max`."""
    images_mib_max: Annotated[int, Meta(ge=64)] = 2048
    """MiB of memory that it may take, instead of `check_mib_max`."""
    memory_mib_max: Annotated[int, Meta(ge=0)] = 0
    """MiB of memory of a gateway above which it refuses new work with 503; 0 takes four fifths of
    what the host or the container has, shared among `gateway.processes`."""
    n_max: Count = 128
    """Choices (`n`) of one request."""
    stop_strings_max: Count = 16
    """Stop strings of one request."""
    stop_string_chars_max: Count = 1024
    """Characters of one stop string."""
    schema_bytes_max: Annotated[int, Meta(ge=1, le=512 << 10)] = 128 << 10
    """Bytes of a structure, as JSON or text, and of tools of which one must be used. A frame on the
    wire holds twice the upper limit."""
    schema_depth_max: Count = 80
    """Nested objects and arrays of a structure. vLLM takes 64 levels, and 80 in a structural
    tag."""
    regex_chars_max: Count = 16_384
    """Characters of a regex."""
    choices_max: Count = 1024
    """Choices of a structure that is a list of choices."""
    grammar_ms_max: Annotated[float, Meta(ge=10)] = 5_000.0
    """CPU time, of all threads together, that compiling a structure may take; the process is killed
    then."""
    grammar_mib_max: Annotated[int, Meta(ge=64)] = 1024
    """MiB of memory that compiling a structure may take."""
    grammars_per_key_max: Count = 8
    """Structures of one API key that compile or wait for it in one gateway. Structures that were
    compiled before do not count."""


class LimitsConfig(Section, frozen=True):
    """What one running request may hold. An API key may have limits of its own (`baton keys`),
    which go before these."""

    kv_budget_mib: Mib = 0.0
    """MiB of KV that a request is promised at a time, in whole blocks, instead of all that its
    longest answer would need; 0 promises all. A stream that reaches 80 % is promised as much again,
    or prepared to move; at 100 % it goes on at the decode worker with most room, or waits in the
    queue until one has room. Streams that cannot go on exactly elsewhere are promised all."""
    kv_budget_mib_of_class: dict[Class, Mib] = field(default_factory=dict)
    """The same for requests of one class, by its name."""

    def kv_budgets(self) -> tuple[int, ...]:
        """Bytes, by class; 0 = no budget."""
        mib = [self.kv_budget_mib_of_class.get(name, self.kv_budget_mib) for name in CLASSES]
        return tuple(int(size * (1 << 20)) for size in mib)
