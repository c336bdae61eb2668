"""What clients asked for lately: how often, how much there was to compute, how much was generated.

Lengths come from what was asked for, and only two shares of them from what was served: how much of
a prompt had to be computed, and how much of `max_tokens` was generated. The requests that a full
phase refuses are the ones that need it most, so means of what was served would hide the need.

Sums in slots, so that the cost depends neither on the load nor on the length of the window.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

SLOTS = 30


class Mix(NamedTuple):
    """The load of a window."""

    #: Requests that came in it.
    requests: int
    #: Requests per second, the refused ones included.
    rate: float
    #: Mean prompt tokens that a request has to compute, beyond what is cached.
    prompt: float
    #: Mean tokens that a request generates.
    output: float
    #: Mean KV tokens that a request is promised: its prompt, and all that it may generate.
    kv: float


@dataclass(slots=True)
class _Slot:
    """The sums of one slot of time."""

    #: The slot's number since the clock's zero.
    number: int
    requests: int = 0
    #: Of those requests.
    asked_prompt: int = 0
    asked_output: int = 0
    #: Of the prompts that were computed: all their tokens, and those not cached.
    prompt: int = 0
    computed: int = 0
    #: Of the requests that ended: what they might have generated, and what they did.
    allowed: int = 0
    generated: int = 0


class MixWindow:
    """The latest `seconds`, with the precision of one slot."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        #: When its first request came, in seconds; None = none came yet.
        self.first: float | None = None
        self._slots: deque[_Slot] = deque()

    def add_request(self, prompt_tokens: int, max_tokens: int, now: float) -> None:
        """A request came."""
        slot = self._slot(now)
        slot.requests += 1
        slot.asked_prompt += prompt_tokens
        slot.asked_output += max_tokens

    def add_prompt(self, prompt_tokens: int, computed: int, now: float) -> None:
        """A prompt was computed, save what was cached."""
        slot = self._slot(now)
        slot.prompt += prompt_tokens
        slot.computed += computed

    def add_output(self, max_tokens: int, generated: int, now: float) -> None:
        """A request ended."""
        slot = self._slot(now)
        slot.allowed += max_tokens
        slot.generated += generated

    def mix(self, now: float) -> Mix | None:
        """None until a request, a prompt and an answer were seen."""
        self._forget(now)
        slots = self._slots
        requests = sum(slot.requests for slot in slots)
        prompt = sum(slot.prompt for slot in slots)
        allowed = sum(slot.allowed for slot in slots)
        if not requests or not prompt or not allowed or self.first is None:
            return None
        begun = (int(now * SLOTS / self.seconds) + 1 - SLOTS) * self.seconds / SLOTS
        seconds = max(self.seconds / SLOTS, now - max(begun, self.first))
        asked_prompt = sum(slot.asked_prompt for slot in slots) / requests
        asked_output = sum(slot.asked_output for slot in slots) / requests
        return Mix(
            requests,
            requests / seconds,
            asked_prompt * sum(slot.computed for slot in slots) / prompt,
            asked_output * sum(slot.generated for slot in slots) / allowed,
            asked_prompt + asked_output,
        )

    def _slot(self, now: float) -> _Slot:
        if self.first is None:
            self.first = now
        number = int(now * SLOTS / self.seconds)
        if not self._slots or self._slots[-1].number != number:
            self._slots.append(_Slot(number))
            self._forget(now)
        return self._slots[-1]

    def _forget(self, now: float) -> None:
        oldest = int(now * SLOTS / self.seconds) - SLOTS
        while self._slots and self._slots[0].number <= oldest:
            self._slots.popleft()
