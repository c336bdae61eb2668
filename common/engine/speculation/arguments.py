"""Makes vLLM's arguments of `[speculation]`.

Theory of operation: drafts are checked by vLLM's rejection sampler, which gives a greedy request
the tokens that it would have had without drafts. What vLLM's sampler does with drafts otherwise
cannot be entered at any position: a seed's random stream, for one, moves by as many draws as there
were drafts. On CPU, requests that need such state therefore get no drafts (`scheduler.py`) and are
sampled as on an engine without speculation (`worker.py`), so that they continue elsewhere exactly,
too. On a device vLLM's own classes stay, and such requests end when their worker is lost.

The lengths of drafts are always given by batch size, even where it does not matter: otherwise vLLM
fills up the first step of a prompt that was handed over with drafts that nobody made.
"""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import ConfigError

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from common.config import WorkerConfig

WORKER = "common.engine.speculation.worker.SpeculatingWorker"
NO_SUFFIX = (
    '"suffix" needs the package arctic-inference==0.1.1, which is built from its source; install '
    'it, or use "ngram"'
)
SCHEDULER = "common.engine.speculation.scheduler.SpeculatingScheduler"


def engine_arguments(worker: WorkerConfig, *, on_cpu: bool) -> dict[str, Any]:
    """Arguments of vLLM's engine; none where it does not speculate. Raises ConfigError for a method
    whose library or whose drafter is not here."""
    speculation, engine = worker.speculation, worker.engine
    if speculation.method == "none":
        return {}
    made: dict[str, Any] = {
        "method": speculation.method,
        "num_speculative_tokens": speculation.tokens,
        "num_speculative_tokens_per_batch_size": by_batch(
            speculation.tokens, speculation.batch_max, engine.max_num_seqs
        ),
    }
    match speculation.method:
        case "ngram":
            made["prompt_lookup_min"] = speculation.ngram_min
            made["prompt_lookup_max"] = speculation.ngram_max
        case "suffix":
            if importlib.util.find_spec("arctic_inference") is None:
                raise ConfigError("speculation.method", NO_SUFFIX)
        case "draft_model" | "eagle" | "eagle3":
            if not (Path(speculation.drafter) / "config.json").is_file():
                sentence = f"{speculation.drafter!r} is no folder of a model, with a config.json"
                raise ConfigError("speculation.drafter", sentence)
            made["model"] = speculation.drafter
    own = {"worker_cls": WORKER, "scheduler_cls": SCHEDULER} if on_cpu else {}
    return {"speculative_config": made, "async_scheduling": False, **own}


def by_batch(tokens: int, batch_max: int, seqs: int) -> list[tuple[int, int, int]]:
    """(first, last, tokens of a draft) by the number of requests of a step. Above `batch_max` none
    are drafted; 0 = at every size."""
    if not batch_max or batch_max >= seqs:
        return [(1, seqs, tokens)]
    return [(1, batch_max, tokens), (batch_max + 1, seqs, 0)]


def samples_apart(made: VllmConfig) -> bool:
    """Whether requests whose state must be restored are kept from drafts, so that the engine can
    continue them."""
    return bool(made.parallel_config.worker_cls == WORKER)


def without_speculation(made: VllmConfig) -> VllmConfig:
    """The same engine without drafts, for what is about requests that get none."""
    if made.speculative_config is None:
        return made
    plain = copy.copy(made)
    plain.speculative_config = None
    return plain
