"""Each way a handoff may end has its own event, and only what an operator must see is loud."""

from typing import Literal

import pytest
import structlog

from common.errors import Code
from common.kv.messages import KvDone, KvStatus
from common.messages import KvCounts, KvReport
from common.worker.kv_log import LinkLog, log_handoff
from tests.rigs.messages import kv_done

Side = Literal["send", "receive", "copy"]


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
        ("copy", "", "", 0, "stream.copied", "debug"),
    ],
)
def test_the_event_says_how_it_ended(
    side: Side, error: str, trouble: str, retries: int, event: str, level: str
) -> None:
    report = KvReport(retries=retries)
    done = kv_done(side=side, report=report, error=error, message="why", trouble=trouble, peer="w9")
    with structlog.testing.capture_logs() as lines:
        log_handoff(structlog.get_logger(), done)
    (line,) = lines
    assert (line["event"], line["log_level"]) == (event, level)
    assert (line["request_id"], line["peer"]) == ("r", "w9")
    assert line["sentence"]


def told(links: LinkLog, **lanes: tuple[str, ...]) -> list[tuple[str, str]]:
    with structlog.testing.capture_logs() as lines:
        links.update(KvStatus(counts=KvCounts(), lanes=lanes))
    return [(line["log_level"], line["event"]) for line in lines]


TCP, SHARED = ("tcp/eth0",), ("sysv/memory", "tcp/lo")


def test_a_connection_is_told_once_and_again_when_it_changes() -> None:
    links = LinkLog(structlog.get_logger(), "tcp,sm,self")
    assert told(links) == []
    assert told(links, p0=SHARED) == [("info", "link.opened")]
    assert told(links, p0=SHARED, p1=TCP) == [("info", "link.opened")]
    assert told(links, p0=TCP, p1=TCP) == [("info", "link.opened")]
    assert told(links, p1=()) == []
    assert told(links, p1=TCP) == [("info", "link.opened")]


def test_a_fall_back_to_tcp_is_a_warning_only_where_more_was_asked_for() -> None:
    links = LinkLog(structlog.get_logger(), "rc,tcp,sm,self")
    assert told(links, p0=TCP) == [("warning", "link.degraded")]
    assert told(links, p0=("rc_mlx5/mlx5_0:1", "tcp/eth0")) == [("info", "link.opened")]
    assert told(links, p0=SHARED) == [("info", "link.opened")]


def test_the_choice_of_compression_is_told_with_its_reason() -> None:
    report = KvReport(payload_bytes=10, raw_bytes=40, compression="fp8")
    done = KvDone(request_id="r", attempt=1, side="send", report=report, choice="because")
    with structlog.testing.capture_logs() as lines:
        log_handoff(structlog.get_logger(), done)
    chosen, ended = lines
    assert (chosen["event"], chosen["log_level"]) == ("compression.chosen", "info")
    assert chosen["sentence"] == "because"
    assert ended["sentence"] == "10 bytes of KV, fp8 of 40"


def test_a_conversion_is_told_with_the_type_in_which_kv_travelled() -> None:
    report = KvReport(payload_bytes=10, raw_bytes=10, element="bfloat16")
    done = KvDone(request_id="r", attempt=1, side="send", report=report)
    with structlog.testing.capture_logs() as lines:
        log_handoff(structlog.get_logger(), done)
    assert lines[-1]["sentence"] == "10 bytes of KV, converted, as bfloat16"
