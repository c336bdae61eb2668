"""Why two workers are never paired, in words: the parts of their fingerprints that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from services.router.placement_types import WorkerView

NAMED_MAX = 3


def difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """As `block_tokens 128 ≠ 64`, ours first; empty when the parts do not tell."""
    keys = [key for key in sorted({*ours, *theirs}) if ours.get(key) != theirs.get(key)]
    told = [f"{key} {ours.get(key, 'unsaid')} ≠ {theirs.get(key, 'unsaid')}" for key in keys]
    more = f" and {len(told) - NAMED_MAX} more" if len(told) > NAMED_MAX else ""
    return ", ".join(told[:NAMED_MAX]) + more


def why_unpaired(decode: WorkerView, prefills: Sequence[WorkerView]) -> str:
    """A sentence about one D and all ready prefill workers, none of which has its fingerprint."""
    sentence = f"no ready prefill worker has the fingerprint of {decode.name}"
    told = [
        f"{view.name}: {differs}"
        for view in prefills[:NAMED_MAX]
        if (differs := difference(decode.fingerprint_parts, view.fingerprint_parts))
    ]
    return f"{sentence} ({'; '.join(told)})" if told else sentence
