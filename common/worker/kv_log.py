"""Log events of the KV plane.

A handoff that went well is logged at level debug, and one that shows trouble between two workers as
a warning. The transport of each connection is logged once, as a warning if it is slower than the
configuration asks for.
"""

from __future__ import annotations

from common.errors import Code
from common.kv.messages import KvDone, KvStatus
from common.kv.transport.chosen_transports import crosses_by_tcp_only, wants_more_than_tcp
from common.messages import KvReport
from common.telemetry.log import Logger


def log_handoff(log: Logger, done: KvDone) -> None:
    """Logs one handoff that ended."""
    report = done.report
    bound = log.bind(
        request_id=done.request_id,
        attempt=done.attempt,
        peer=done.peer,
        side=done.side,
        blocks=report.blocks,
        bytes=report.payload_bytes,
        retries=report.retries,
        digest_mismatches=report.digest_mismatches,
    )
    if done.choice:
        bound.info("compression.chosen", sentence=done.choice)
    if done.trouble:
        sentence = f"{done.message}; the router is told not to pair with {done.peer} for a while"
        bound.warning("pair.troubled", kind=done.trouble, sentence=sentence)
    elif done.error == Code.CANCELLED:
        bound.debug("handoff.cancelled", sentence=done.message)
    elif done.side == "copy":
        what = done.message or "it has all but the last of the stream's full blocks"
        bound.debug("stream.copied", sentence=f"before it moves, {done.held} blocks: {what}")
    elif done.error and done.side == "send":
        what = f"KV for {done.peer}" if done.peer else "KV that was kept"
        bound.warning("lease.expired", sentence=f"{what}: {done.message}")
    elif done.error:
        sentence = f"{done.message}; the prompt is computed here"
        bound.warning("handoff.failed", sentence=sentence)
    elif report.retries:
        sentence = (
            f"KV from {done.peer} came after {report.retries} retries, "
            f"{report.digest_mismatches} of them for damage"
        )
        bound.warning("handoff.retried", sentence=sentence)
    else:
        bound.debug(
            "handoff.ended", sentence=f"{report.payload_bytes} bytes of KV{_before(report)}"
        )


def _before(report: KvReport) -> str:
    if report.compression:
        return f", {report.compression} of {report.raw_bytes}"
    return f", converted, as {report.element}" if report.element else ""


class LinkLog:
    """Logs the transport of each connection to a P once, and again if UCX chose another one after a
    reconnection."""

    def __init__(self, log: Logger, transports: str) -> None:
        self._log = log
        self._transports = transports
        self._logged: dict[str, tuple[str, ...]] = {}

    def update(self, status: KvStatus) -> None:
        """Logs connections of `status` whose transport is new."""
        for peer, lanes in status.lanes.items():
            if lanes and self._logged.get(peer) != lanes:
                self._log_transport(peer, lanes)
        self._logged = dict(status.lanes)

    def _log_transport(self, peer: str, lanes: tuple[str, ...]) -> None:
        bound = self._log.bind(peer=peer, lanes=list(lanes))
        if wants_more_than_tcp(self._transports) and crosses_by_tcp_only(lanes):
            sentence = (
                f"KV from {peer} falls back to TCP: of {self._transports!r} UCX can use nothing "
                "faster between the two hosts; `baton doctor` on both tells what each has"
            )
            bound.warning("link.degraded", sentence=sentence)
        else:
            bound.info("link.opened", sentence=f"KV from {peer} comes over {lanes[0]}")
