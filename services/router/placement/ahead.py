"""For which full decode workers a prompt may be computed now, before one of their slots is free.

Theory of operation: D's slot would be idle while P computes the prompt. So where no slot is free,
a prompt begins as much earlier as it takes: a decode worker may have more requests than slots, but
no more of them than streams are expected to end by the time the KV of this prompt can be there, and
than a share `slots_ahead_max` of its slots. Only the slot is forecast; KV it must have free for the
whole request, as for any other. By Little's law, of so many streams that stay for `residence_s` on
average, the share `seconds / residence_s` ends within `seconds`. Where that was too many, the
request waits in the engine of D and its KV with P, within the lease; while the first tokens of
computed prompts are overdue, no further prompt begins ahead.
"""

from __future__ import annotations

from typing import NamedTuple

from services.router.placement.types import Placement, Views, WorkerView


class Forecast(NamedTuple):
    """What one request may count on."""

    #: Seconds for which a prefill worker that is idle computes its prompt.
    seconds: float
    #: Mean seconds that a request stays on a decode worker; 0 = not measured yet.
    residence_s: float

    def ending(self, view: WorkerView) -> float:
        """How many of the worker's streams should end in that time."""
        share = self.seconds / self.residence_s if self.residence_s > 0 else 0.0
        return view.decoding * min(1.0, share)


def with_slots_ahead(views: Views, expected: Forecast, slots_ahead_max: float) -> list[WorkerView]:
    """Those of these full workers that may be given the request, each with so many more slots."""
    found = []
    for view in views:
        ahead = view.requests - view.requests_max
        most = int(min(expected.ending(view), view.requests_max * slots_ahead_max))
        if ahead < most and not view.mixed:
            found.append(view._replace(requests_max=view.requests_max + most))
    return found


def told(placement: Placement, expected: Forecast) -> Placement:
    """The placement on one of these workers, with the reason why it may begin."""
    view = placement.decode
    sentence = (
        f"{view.name} has no free slot; of its {view.decoding} streams "
        f"{expected.ending(view):.1f} should end in the {expected.seconds * 1000:.0f} ms that the "
        f"prompt takes, so it begins ahead of its slot; {placement.sentence}"
    )
    return placement._replace(sentence=sentence, ahead=True)
