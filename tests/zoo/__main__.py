"""`make zoo`: every family, each with 200 prompts and with faults, then with fewer on two ranks;
then it writes docs/models.md.

`--only KEY ...` tries these families alone and writes their rows; `--ranks N` tries engines of so
many ranks alone. `--sample` tries some families with a few prompts each, one of them on two ranks,
as `make test-long` does: which ones follows from the day, or from `--seed`; it compares their rows
with those of the page. The exit status is 1 if anything did not hold.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time

from common.config import EngineConfig
from common.engine.vllm.args import prepare_process
from tests.zoo.checkpoints import make_checkpoints
from tests.zoo.families import FAMILIES, Family
from tests.zoo.page import PAGE, name_of, page, rows_of, works
from tests.zoo.trial import SAMPLE, TWO_RANKS, WHOLE, Trial

SAMPLED = 3
#: Days until a sample returns.
STRIDE = -(-len(FAMILIES) // SAMPLED)
WRONG_SHOWN = 10


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo")
    parser.add_argument("--only", nargs="+", metavar="KEY", default=[])
    parser.add_argument("--ranks", type=int, choices=(1, 2))
    parser.add_argument("--sample", action="store_true")
    parser.add_argument("--seed", type=int, default=datetime.datetime.now(datetime.UTC).toordinal())
    options = parser.parse_args()
    families = chosen(options.only, options.seed if options.sample else None)
    if options.sample:
        keys = " ".join(family.key for family in families)
        print(f"repeat with: python -m tests.zoo --sample --seed {options.seed} --only {keys}")
    make_checkpoints(families)
    prepare_process(EngineConfig(threads=1), workers=2, eager=True)
    _inspect_models_here()
    trials = [
        (family, ranks)
        for family in families
        for ranks in (1, 2)
        if options.ranks in (None, ranks) and not (options.sample and ranks > 1)
    ]
    if options.sample:
        trials += [(family, 2) for family in on_two_ranks(families, options.seed)]
    failed = [trial for trial in trials if _try(*trial, options.sample, options.seed)]
    return 1 if failed else 0


def _try(family: Family, ranks: int, sample: bool, seed: int) -> bool:
    """Returns whether something did not hold, or the page says something else."""
    start, written = time.monotonic(), PAGE.read_text()
    if ranks > 1 and not works(written, family, 1):
        return False
    whole = WHOLE if ranks == 1 else TWO_RANKS
    outcome = Trial(family, SAMPLE if sample else whole, seed, ranks).run()
    found = page([outcome], written)
    (line,) = [line for line in rows_of(found) if name_of(line) == family.name]
    print(f"{line} {ranks} ranks, {time.monotonic() - start:.0f} s", flush=True)
    for sentence in outcome.wrong[:WRONG_SHOWN]:
        print(f"    WRONG {family.key}: {sentence}", flush=True)
    if not sample:
        PAGE.write_text(found)
    elif found != written:
        print(f"{PAGE.name} has no such row")
    return bool(outcome.wrong) or (sample and found != written)


def on_two_ranks(sample: list[Family], seed: int) -> list[Family]:
    """At most one of them, which takes longer; in turns."""
    written = PAGE.read_text()
    able = [family for family in sample if works(written, family, 2)]
    return [able[seed // STRIDE % len(able)]] if able else []


def chosen(only: list[str], seed: int | None) -> list[Family]:
    """All if neither is asked for. Samples of successive seeds take turns through all families."""
    unknown = sorted(set(only) - {family.key for family in FAMILIES})
    if unknown:
        raise SystemExit(f"there is no family {unknown[0]!r}")
    if only:
        return [family for family in FAMILIES if family.key in only]
    if seed is None:
        return list(FAMILIES)
    return list(FAMILIES[seed % STRIDE :: STRIDE])


def _inspect_models_here() -> None:
    """vLLM inspects each class of models that it sees for the first time on a machine in a process
    of its own, 15 s each, because on a GPU its import might begin to use the device."""
    from vllm.model_executor.models import registry

    registry._run_in_subprocess = lambda inspect: inspect()


if __name__ == "__main__":
    sys.exit(main())
