"""What a request costs, in tokens: prompt tokens to compute, plus the tokens to make times
`output_cost` (2 by default: a made token holds a slot and KV for a whole step)."""

from __future__ import annotations

from services.router.records import Try


def predicted(prompt_tokens: int, output_tokens: int, output_cost: float) -> float:
    return prompt_tokens + output_cost * output_tokens


def actual(each: Try, output_cost: float) -> float:
    """Of a try that is over: what workers did not find in a cache, and what was made."""
    prompt = each.ask.prompt_tokens
    if each.prefill_report is not None:
        prompt -= each.prefill_report.cached_tokens
    elif each.decode_report is not None:
        prompt -= each.decode_report.cached_tokens
    made = each.end_report.completion_tokens if each.end_report is not None else 0
    return max(0, prompt) + output_cost * made
