"""What clients asked for lately: how often, how much there was to compute, how much was generated.

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
    #: Mean prompt tokens that a request has to compute, beyond what was cached.
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
    kv_tokens: int = 0
    prompts: int = 0
    prompt_tokens: int = 0
    outputs: int = 0
    output_tokens: int = 0


class MixWindow:
    """The latest `seconds`, with the precision of one slot."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._slots: deque[_Slot] = deque()
        self._first: float | None = None

    def add_request(self, kv_tokens: int, now: float) -> None:
        """A request came that needs so many KV tokens at most."""
        slot = self._slot(now)
        slot.requests += 1
        slot.kv_tokens += kv_tokens

    def add_prompt(self, tokens: int, now: float) -> None:
        """A prompt was computed, and so many of its tokens were not cached."""
        slot = self._slot(now)
        slot.prompts += 1
        slot.prompt_tokens += tokens

    def add_output(self, tokens: int, now: float) -> None:
        """A request ended that generated so many tokens."""
        slot = self._slot(now)
        slot.outputs += 1
        slot.output_tokens += tokens

    def mix(self, now: float) -> Mix | None:
        """None until a prompt and an answer were seen."""
        self._forget(now)
        prompts = sum(slot.prompts for slot in self._slots)
        outputs = sum(slot.outputs for slot in self._slots)
        if not prompts or not outputs or self._first is None:
            return None
        requests = sum(slot.requests for slot in self._slots)
        begun = (int(now * SLOTS / self._seconds) + 1 - SLOTS) * self._seconds / SLOTS
        seconds = max(self._seconds / SLOTS, now - max(begun, self._first))
        return Mix(
            requests,
            requests / seconds,
            sum(slot.prompt_tokens for slot in self._slots) / prompts,
            sum(slot.output_tokens for slot in self._slots) / outputs,
            sum(slot.kv_tokens for slot in self._slots) / max(1, requests),
        )

    def _slot(self, now: float) -> _Slot:
        if self._first is None:
            self._first = now
        number = int(now * SLOTS / self._seconds)
        if not self._slots or self._slots[-1].number != number:
            self._slots.append(_Slot(number))
            self._forget(now)
        return self._slots[-1]

    def _forget(self, now: float) -> None:
        oldest = int(now * SLOTS / self._seconds) - SLOTS
        while self._slots and self._slots[0].number <= oldest:
            self._slots.popleft()
