"""The log line of a handoff that ended: silent when all is well, loud when a pair is in trouble."""

from __future__ import annotations

from common.errors import Code
from common.kv.messages import KvDone
from common.log import Logger


def log_handoff(log: Logger, done: KvDone) -> None:
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
    if done.trouble:
        sentence = f"{done.message}; the router is told not to pair with {done.peer} for a while"
        bound.warning("pair.troubled", kind=done.trouble, sentence=sentence)
    elif done.error == Code.CANCELLED:
        bound.debug("handoff.cancelled", sentence=done.message)
    elif done.error and done.side == "send":
        bound.warning("lease.expired", sentence=f"KV for {done.peer}: {done.message}")
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
        bound.debug("handoff.ended", sentence=f"{report.payload_bytes} bytes of KV")
