"""Whether P compresses what it sends to a D: a policy over measured rates, one memory per D.

Theory of operation: `auto` compares the time of a byte of KV both ways, as if encoding, wire and
decoding came one after another: `1 / link` against `fraction / link + 1 / codec`. It starts when
that saves a fifth and stops when it saves nothing, so that noise does not flip it. The link's rate
comes from messages that went uncompressed, while any was on its way; so that it stays known, every
`PROBE_EVERY`th handoff of a compressing pair goes uncompressed. P measures its own codec and takes
D's for equal. D must have allowed it; a worker that wants its KV exact neither allows nor does it.
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
class _Window:
    """Messages on their way at once. `raw` is false once a compressed one was among them."""

    began: float = 0.0
    sent_bytes: int = 0
    in_flight: int = 0
    raw: bool = True


@dataclass(slots=True)
class _Peer:
    """`told`: the last sentence about it; `news`: one that nobody has read yet."""

    window: _Window
    link: float | None = None
    compresses: bool = False
    since_probe: int = 0
    told: str = ""
    news: str = ""


class Chooser:
    """`fraction`: bytes of fp8 per byte of KV, 0 where this KV cannot be compressed. `codec`: bytes
    of KV a second through encode and decode, used by `auto`. At most `PEERS_MAX` are remembered,
    the least recently used is forgotten."""

    def __init__(self, mode: Mode, fraction: float, codec: float) -> None:
        self._mode = mode
        self._fraction = fraction
        self._codec = codec
        self._peers: OrderedDict[str, _Peer] = OrderedDict()

    def choose(self, name: str, allowed: bool, *, lent: bool = False) -> bool:
        """Whether to compress the handoff to this D that begins now. `lent`: it reads our memory,
        so that there is no link whose rate could count."""
        if self._mode == "none":
            return False
        peer = self._peer(name)
        if not self._fraction:
            return self._tell(peer, "", f"KV for {name} is not compressed: unknown layout or dtype")
        if not allowed:
            return self._tell(peer, "", f"KV for {name} is not compressed: {name} does not take it")
        if self._mode == "fp8":
            return self._tell(peer, "fp8", f"KV for {name} is compressed to fp8, as configured")
        if lent:
            why = f"KV for {name} is not compressed: it stays in this host's memory"
            return self._tell(peer, "", why)
        return self._weigh(name, peer)

    def news(self, name: str) -> str:
        """What changed for this D, in a sentence, once."""
        peer = self._peers.get(name)
        if peer is None:
            return ""
        news, peer.news = peer.news, ""
        return news

    def sending(self, name: str, compressed: bool, now: float) -> None:
        """A message leaves."""
        if self._mode != "auto":
            return
        window = self._peer(name).window
        if not window.in_flight:
            window.began, window.sent_bytes, window.raw = now, 0, True
        window.in_flight += 1
        window.raw = window.raw and not compressed

    def sent(self, name: str, wire_bytes: int, now: float) -> None:
        """It has gone, or (0 bytes) failed."""
        peer = self._peers.get(name)
        if peer is None or not peer.window.in_flight:
            return
        window = peer.window
        window.in_flight -= 1
        window.sent_bytes += wire_bytes
        window.raw = window.raw and wire_bytes > 0
        if window.in_flight and window.sent_bytes < SAMPLE_BYTES_MAX:
            return
        if window.raw and window.sent_bytes >= SAMPLE_BYTES_MIN and now > window.began:
            rate = window.sent_bytes / (now - window.began)
            peer.link = rate if peer.link is None else peer.link + WEIGHT * (rate - peer.link)
        window.began, window.sent_bytes = now, 0

    def _weigh(self, name: str, peer: _Peer) -> bool:
        if peer.link is None:
            return False
        share = self._fraction + peer.link / self._codec
        peer.compresses = share < (STOP_ABOVE if peer.compresses else START_BELOW)
        rates = (
            f"the link moves {peer.link / 1e6:.0f} MB/s, the codec {self._codec / 1e6:.0f} MB/s of "
            f"KV, so {self._fraction:.0%} of the bytes would take {share:.0%} of the time"
        )
        if not peer.compresses:
            return self._tell(peer, "", f"KV for {name} is not compressed: {rates}", "raw")
        peer.since_probe += 1
        if peer.since_probe >= PROBE_EVERY:
            peer.since_probe = 0
            return False
        return self._tell(peer, "fp8", f"KV for {name} is compressed to fp8: {rates}", "fp8")

    def _tell(self, peer: _Peer, encoding: str, sentence: str, kind: str = "") -> bool:
        """`kind` stands for a sentence whose figures differ each time."""
        if peer.told != (kind or sentence):
            peer.told, peer.news = kind or sentence, sentence
        return encoding == "fp8"

    def _peer(self, name: str) -> _Peer:
        peer = self._peers.get(name)
        if peer is None:
            peer = self._peers[name] = _Peer(_Window())
            if len(self._peers) > PEERS_MAX:
                self._peers.popitem(last=False)
        else:
            self._peers.move_to_end(name)
        return peer
