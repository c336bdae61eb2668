"""Explains why two workers cannot exchange KV: the parts of their fingerprints that differ."""

from __future__ import annotations

from collections.abc import Mapping

from services.router.placement.types import Views, WorkerView

NAMED_MAX = 3


def difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """The differing parts as `block_tokens 128 ≠ 64`, ours first; empty when none differs."""
    keys = [key for key in sorted({*ours, *theirs}) if ours.get(key) != theirs.get(key)]
    parts = [f"{key} {ours.get(key, 'unsaid')} ≠ {theirs.get(key, 'unsaid')}" for key in keys]
    more = f" and {len(parts) - NAMED_MAX} more" if len(parts) > NAMED_MAX else ""
    return ", ".join(parts[:NAMED_MAX]) + more


def explain_mismatch(decode: WorkerView, prefills: Views) -> str:
    """A sentence about one decode worker and all ready prefill workers, none of which has its
    fingerprint."""
    sentence = f"no ready prefill worker has the fingerprint of {decode.name}"
    reasons = [
        f"{view.name}: {differs}"
        for view in prefills[:NAMED_MAX]
        if (differs := difference(decode.fingerprint_parts, view.fingerprint_parts))
    ]
    return f"{sentence} ({'; '.join(reasons)})" if reasons else sentence
