"""fp8 on the wire costs accuracy, a known amount; without it the wire costs none.

The embedded model's weights are random and magnify every rounding: KV rounded to bfloat16 alone
moves a likely token's logprob by more than 1 (`make bench ARGS=compression`).
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from common.messages import Sampling, TokenLogprobs
from tests.e2e.engine.pair import Pair, make_config, play

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

LENGTHS = (300, 700, 1200, 1900)
FIRST_TOKEN = Sampling(max_tokens=1, temperature=0.0, ignore_eos=True, logprobs=20)
DIFFERENCE_MAX = 10.0
FLOAT32_TO_FP8 = 4


def first_tokens(run_dir: Path, compression: str, rounds: int) -> list[list[TokenLogprobs]]:
    """The likeliest first tokens of every prompt, for each round of handing all over anew."""
    run_dir.mkdir(mode=0o750)
    told: list[list[TokenLogprobs]] = []

    async def work(pair: Pair) -> None:
        for count in range(rounds):
            told.append([])
            for length in LENGTHS:
                draw = random.Random(length)
                prompt = [draw.randint(10, 250) for _ in range(length)]
                result, end = await pair.hand_over(prompt, FIRST_TOKEN, salt=f"{count}")
                report = end.report
                assert (end.error, result.error) == ("", "")
                if compression == "fp8":
                    assert report.compression == "fp8"
                    share = report.raw_bytes / report.payload_bytes
                    assert share == pytest.approx(FLOAT32_TO_FP8, rel=0.01)
                else:
                    assert (report.compression, report.payload_bytes) == ("", report.raw_bytes)
                told[-1].append(result.logprobs[0])

    play(make_config(run_dir, compression=compression), work)
    return told


def difference(one: list[TokenLogprobs], other: list[TokenLogprobs]) -> float:
    """The largest, over all prompts and the tokens that both name."""
    largest = 0.0
    for mine, theirs in zip(one, other, strict=True):
        known = dict(zip(theirs.token_ids, theirs.logprobs, strict=True))
        pairs = zip(mine.token_ids, mine.logprobs, strict=True)
        shared = [abs(value - known[token]) for token, value in pairs if token in known]
        assert shared
        largest = max(largest, *shared)
    return largest


def test_the_error_of_compression_is_known_and_none_without_it(tmp_path: Path) -> None:
    exact, again = first_tokens(tmp_path / "none", "none", rounds=2)
    (lossy,) = first_tokens(tmp_path / "fp8", "fp8", rounds=1)
    without, with_fp8 = difference(exact, again), difference(exact, lossy)
    print(f"max logprob difference of first tokens: fp8 {with_fp8:.4f}, none {without:.4f}")
    assert without == 0.0
    assert 0.0 < with_fp8 < DIFFERENCE_MAX
