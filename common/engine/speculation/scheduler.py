"""vLLM's scheduler, with requests that get no drafts. It runs in the engine's process only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.scheduler import Scheduler

from common.engine.vllm.sampling import RESUME_KEY

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.v1.outputs import DraftTokenIds


class SpeculatingScheduler(Scheduler):
    """Named by `scheduler_cls`. vLLM gives it the drafts after each step, which the next step
    checks."""

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        super().update_draft_token_ids(draft_token_ids)
        drafts = zip(draft_token_ids.req_ids, draft_token_ids.draft_token_ids, strict=True)
        for request_id, tokens in drafts:
            request = self.requests.get(request_id) if tokens else None
            if request is not None and not gets_drafts(request.sampling_params):
                request.spec_token_ids = []


def gets_drafts(params: SamplingParams | None) -> bool:
    """Whether vLLM's rejection sampler does all that the request asks for. It does not apply
    `ResumeSampler`, `min_p` and `logit_bias`, and what it does with a thinking budget was never
    tried."""
    if params is None:
        return False
    resumed: dict[str, Any] = (params.extra_args or {}).get(RESUME_KEY) or {}
    apart = params.min_p or params.logit_bias or params.thinking_token_budget is not None
    return not apart and "temperature" not in resumed
