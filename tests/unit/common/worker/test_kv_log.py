"""Each way a handoff may end has its own event, and only what an operator must see is loud."""

from typing import Literal

import pytest
import structlog

from common.errors import Code
from common.kv.messages import KvDone
from common.messages import KvReport
from common.worker.kv_log import log_handoff

Side = Literal["send", "receive"]


@pytest.mark.parametrize(
    ("side", "error", "trouble", "retries", "event", "level"),
    [
        ("receive", "", "", 0, "handoff.ended", "debug"),
        ("receive", "", "", 2, "handoff.retried", "warning"),
        ("receive", Code.KV_TRANSFER_FAILED, "", 0, "handoff.failed", "warning"),
        ("receive", Code.KV_TRANSFER_FAILED, "digest", 1, "pair.troubled", "warning"),
        ("receive", Code.CANCELLED, "", 0, "handoff.cancelled", "debug"),
        ("send", Code.KV_TRANSFER_FAILED, "", 0, "lease.expired", "warning"),
        ("send", "", "", 0, "handoff.ended", "debug"),
    ],
)
def test_the_event_says_how_it_ended(
    side: Side, error: str, trouble: str, retries: int, event: str, level: str
) -> None:
    done = KvDone(
        request_id="r",
        attempt=1,
        side=side,
        report=KvReport(retries=retries),
        error=error,
        message="why",
        trouble=trouble,
        peer="w9",
    )
    with structlog.testing.capture_logs() as lines:
        log_handoff(structlog.get_logger(), done)
    (line,) = lines
    assert (line["event"], line["log_level"]) == (event, level)
    assert (line["request_id"], line["peer"]) == ("r", "w9")
    assert line["sentence"]
