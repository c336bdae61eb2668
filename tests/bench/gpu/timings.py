"""How fast handoffs are, by path: many large ones, and one of a prompt's size."""

from __future__ import annotations

import statistics
import time

from common.kv.plan import WINDOW_MAX
from tests.bench.gpu.handoffs import (
    DEVICE_PATHS,
    PINNED_MESSAGE_BYTES,
    Handoffs,
    Settings,
    Stream,
    bench_geometry,
    paths_of,
    unlike_settings,
)
from tests.bench.gpu.kernels import D2H
from tests.bench.gpu.memory import MIB
from tests.bench.gpu.pair import CUDA, Tools
from tests.bench.gpu.raw import SIZES, device_to_device, host_to_host, raw_rate
from tests.bench.gpu.report import Check, Outcome, Row, compared, value_of

GIGA = 1e9
STREAM_S = 1.5
LATENCY_ROUNDS = 15
IN_FLIGHT = (1, 2)
LATENCY_SIZES = (1, 16, 64, 256)
CPU_LATENCY_SIZES = (1, 16)
HOST_WINDOW = 2
"""Messages that a handoff through host memory has in flight (`LOAN_WINDOW_BYTES`)."""


def throughput(tools: Tools, outcome: Outcome) -> None:
    """Of handoffs of half the memory at most, one after the other and two at a time."""
    geometry = bench_geometry(tools.device)
    for path in paths_of(tools.device):
        _throughput(tools, outcome, Settings(path, geometry), f"{path} path")
        if path in DEVICE_PATHS:
            name = f"{path} path, unlike layouts"
            _throughput(tools, outcome, unlike_settings(path, geometry), name)


def _throughput(tools: Tools, outcome: Outcome, settings: Settings, name: str) -> None:
    path, geometry = settings.path, settings.geometry
    prompt_blocks = geometry.blocks // max(IN_FLIGHT)
    name = f"{name}, prompts of {prompt_blocks * geometry.block_bytes // MIB} MiB"
    with Handoffs(tools, settings) as handoffs:
        handoffs.call("fill", list(range(prompt_blocks)), 1)
        handoffs.move(range(prompt_blocks), range(prompt_blocks))
        report = handoffs.report.report
        message_mib = report.payload_bytes / report.messages / MIB
        outcome.rows.append(Row("throughput", f"{name}: a message", message_mib, "MiB"))
        if path in DEVICE_PATHS:
            is_large = message_mib > PINNED_MESSAGE_BYTES / MIB
            what = f"{name}: the KV took it, which the size of its messages shows"
            outcome.checks.append(Check(what, is_large == (path == "device")))
        for in_flight in IN_FLIGHT:
            value = _streamed(handoffs, prompt_blocks, in_flight)
            what = f"{name}, {in_flight} at a time"
            outcome.rows.append(_of_raw(tools, what, value, path, message_mib))
            if path == "device":
                one = f"{what}, of one raw message at a time"
                outcome.rows.append(_of_raw(tools, one, value, path, message_mib, window=1))
            if path == "pinned":
                outcome.rows.append(_of_bus(tools, f"{what}, of the bus", value))
            print(f"  {what}: {value:.1f} GB/s", flush=True)


def _streamed(handoffs: Handoffs, prompt_blocks: int, in_flight: int) -> float:
    """GB/s of handoffs that follow each other, after the first ones."""
    stream = Stream(handoffs, prompt_blocks, in_flight)
    prompt_bytes = prompt_blocks * handoffs.settings.geometry.block_bytes
    stream.turn_until(lambda: stream.moved_bytes >= in_flight * prompt_bytes)
    start, before = time.perf_counter(), stream.moved_bytes
    stream.turn_until(
        lambda: stream.moved_bytes > before and time.perf_counter() - start > STREAM_S
    )
    value = (stream.moved_bytes - before) / (time.perf_counter() - start) / GIGA
    stream.finish()
    return value


def latency(tools: Tools, outcome: Outcome) -> None:
    """From D's asking to the verified KV in its blocks: medians of one prompt's handoff."""
    geometry = bench_geometry(tools.device)
    for path in paths_of(tools.device):
        with Handoffs(tools, Settings(path, geometry)) as handoffs:
            for size in LATENCY_SIZES if tools.device == CUDA else CPU_LATENCY_SIZES:
                ids = list(range(size * MIB // geometry.block_bytes))
                handoffs.move(ids, ids)
                seconds = sorted(handoffs.move(ids, ids) for _ in range(LATENCY_ROUNDS))
                middle = statistics.median(seconds)
                what = f"{path} path, prompt of {size} MiB"
                outcome.rows.append(_seconds_of_raw(tools, what, middle, path, size))
                worst = seconds[-1] * 1000
                print(f"  {what}: {middle * 1000:.2f} ms, at most {worst:.2f} ms", flush=True)


def _of_raw(
    tools: Tools,
    what: str,
    value: float,
    path: str,
    message_mib: float,
    window: int = WINDOW_MAX,
) -> Row:
    """A rate and its share of what raw UCXX moves in messages of this size, or of the nearest that
    was measured, as many in flight."""
    size = min(SIZES, key=lambda size: abs(size - message_mib))
    if path == "device":
        against = device_to_device(size, window)
    else:
        against = host_to_host(size, HOST_WINDOW)
    base = raw_rate(tools.earlier, against)
    return compared("throughput", what, value, "GB/s", against=f"raw UCXX {against}", base=base)


def _of_bus(tools: Tools, what: str, value: float) -> Row:
    """KV crosses the bus once each way, at the same time."""
    base = value_of(tools.earlier, "copies", D2H)
    return compared("throughput", what, value, "GB/s", against=D2H, base=base)


def _seconds_of_raw(tools: Tools, what: str, seconds: float, path: str, size: int) -> Row:
    """A latency and how often it takes what raw UCXX takes for the same bytes as one message."""
    against = device_to_device(size, 1) if path == "device" else host_to_host(size, 1)
    base = raw_rate(tools.earlier, against)
    base_ms = size * MIB / base / GIGA * 1000 if base else None
    against = f"one raw UCXX message, {against}"
    return compared("latency", what, seconds * 1000, "ms", against=against, base=base_ms)
