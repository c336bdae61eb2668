"""Whether P compresses what it sends to a D: a policy over measured rates, with a memory per D.

Theory of operation: `auto` compares the time that a byte of KV takes both ways, as if encoding,
wire and decoding came one after another: `1 / link` against `fraction / link + 1 / codec`. It
starts to compress when that saves a fifth and stops when it saves nothing, so that noise does not
flip the choice. The link's rate comes from uncompressed messages, while any was in flight; so that
it stays known, every `PROBE_EVERY`th handoff of a compressing pair goes uncompressed. P measures
its own codec and assumes that D's is as fast. D must have allowed compression; a worker that wants
its KV exact neither allows nor does it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

Mode = Literal["none", "fp8", "auto"]

START_BELOW = 0.8
STOP_ABOVE = 1.0
PROBE_EVERY = 32
SAMPLE_BYTES_MIN = 1 << 20
SAMPLE_BYTES_MAX = 16 << 20
WEIGHT = 0.3
PEERS_MAX = 1024


@dataclass(slots=True)
class _SendWindow:
    """A time in which at least one message was in flight."""

    began: float = 0.0
    sent_bytes: int = 0
    in_flight: int = 0
    raw: bool = True
    """False once a message was compressed or failed: the window is then no sample of the link."""


@dataclass(slots=True)
class _DecodeWorker:
    """What is known of one D."""

    window: _SendWindow
    link: float | None = None
    """Measured bytes a second; None before the first sample."""
    compresses: bool = False
    since_probe: int = 0
    """Compressed handoffs since the last uncompressed one."""
    last_reason: str = ""
    """What stands for the last reason given, so that the same one is not given again."""
    unread_reason: str = ""


class CompressionChooser:
    """Chooses for each handoff. At most `PEERS_MAX` D are remembered; the least recently used is
    forgotten."""

    def __init__(self, mode: Mode, fraction: float, codec: float) -> None:
        """`fraction`: bytes of fp8 per byte of KV, 0 where this KV cannot be compressed. `codec`:
        bytes of KV a second through encode and decode, used by `auto`."""
        self._mode = mode
        self._fraction = fraction
        self._codec = codec
        self._workers: OrderedDict[str, _DecodeWorker] = OrderedDict()

    def choose(self, name: str, allowed: bool, *, loan: bool = False) -> bool:
        """Whether to compress the handoff to this D that begins now. `allowed`: D accepts it.
        `loan`: D reads P's memory, so there is no link whose rate could count."""
        if self._mode == "none":
            return False
        worker = self._worker(name)
        if not self._fraction:
            return self._explain(
                worker, "", f"KV for {name} is not compressed: unknown layout or dtype"
            )
        if not allowed:
            return self._explain(
                worker, "", f"KV for {name} is not compressed: {name} does not take it"
            )
        if self._mode == "fp8":
            return self._explain(
                worker, "fp8", f"KV for {name} is compressed to fp8, as configured"
            )
        if loan:
            why = f"KV for {name} is not compressed: it stays in this host's memory"
            return self._explain(worker, "", why)
        return self._weigh(name, worker)

    def pop_new_reason(self, name: str) -> str:
        """Returns, once, a sentence on why the choice for this D differs from the one before."""
        worker = self._workers.get(name)
        if worker is None:
            return ""
        reason, worker.unread_reason = worker.unread_reason, ""
        return reason

    def on_send_started(self, name: str, compressed: bool, now: float) -> None:
        """A message to this D was given to the transport."""
        if self._mode != "auto":
            return
        window = self._worker(name).window
        if not window.in_flight:
            window.began, window.sent_bytes, window.raw = now, 0, True
        window.in_flight += 1
        window.raw = window.raw and not compressed

    def on_send_ended(self, name: str, wire_bytes: int, now: float) -> None:
        """The transport has sent it, or (0 bytes) failed to."""
        worker = self._workers.get(name)
        if worker is None or not worker.window.in_flight:
            return
        window = worker.window
        window.in_flight -= 1
        window.sent_bytes += wire_bytes
        window.raw = window.raw and wire_bytes > 0
        if window.in_flight and window.sent_bytes < SAMPLE_BYTES_MAX:
            return
        if window.raw and window.sent_bytes >= SAMPLE_BYTES_MIN and now > window.began:
            rate = window.sent_bytes / (now - window.began)
            worker.link = (
                rate if worker.link is None else worker.link + WEIGHT * (rate - worker.link)
            )
        window.began, window.sent_bytes = now, 0

    def _weigh(self, name: str, worker: _DecodeWorker) -> bool:
        if worker.link is None:
            return False
        share = self._fraction + worker.link / self._codec
        worker.compresses = share < (STOP_ABOVE if worker.compresses else START_BELOW)
        rates = (
            f"the link moves {worker.link / 1e6:.0f} MB/s, the codec {self._codec / 1e6:.0f} MB/s "
            f"of KV, so {self._fraction:.0%} of the bytes would take {share:.0%} of the time"
        )
        if not worker.compresses:
            return self._explain(worker, "", f"KV for {name} is not compressed: {rates}", "raw")
        worker.since_probe += 1
        if worker.since_probe >= PROBE_EVERY:
            worker.since_probe = 0
            return False
        return self._explain(worker, "fp8", f"KV for {name} is compressed to fp8: {rates}", "fp8")

    def _explain(self, worker: _DecodeWorker, encoding: str, sentence: str, kind: str = "") -> bool:
        """Returns whether to compress. `kind` stands for a sentence whose figures differ each time,
        so that only a change of the choice is reported."""
        if worker.last_reason != (kind or sentence):
            worker.last_reason, worker.unread_reason = kind or sentence, sentence
        return encoding == "fp8"

    def _worker(self, name: str) -> _DecodeWorker:
        worker = self._workers.get(name)
        if worker is None:
            worker = self._workers[name] = _DecodeWorker(_SendWindow())
            if len(self._workers) > PEERS_MAX:
                self._workers.popitem(last=False)
        else:
            self._workers.move_to_end(name)
        return worker
