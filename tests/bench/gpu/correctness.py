"""Whether KV arrives byte for byte, whatever its geometry, its number of blocks and its path."""

from __future__ import annotations

from itertools import product

from common.kv.layout import Geometry
from tests.bench.gpu.handoffs import (
    Handoffs,
    Settings,
    checked,
    paths_of,
    unlike_settings,
)
from tests.bench.gpu.memory import KIB, blocks_first, layers_first, some_blocks
from tests.bench.gpu.pair import CUDA, Tools
from tests.bench.gpu.report import Check, Outcome

COUNTS = (1, 3, 17, 61)
GROUPS = (1, 3)
"""Of layers that P computes one after the other."""
WITHDRAWN_BLOCKS = 30
WITHDRAW_AFTER_S = (0.0, 0.0005, 0.001, 0.002, 0.005, 0.02)
GIVEN_UP = "gave the transfer up"
STAGING_MIB = 64
"""Messages of 8 MiB, so that the larger prompts have several."""


def geometries(device: str) -> dict[str, Geometry]:
    """By name; on the CPU fewer, and of fewer layers."""
    layers = 24 if device == CUDA else 3
    found = {
        "pages of 16 KiB, layers first": layers_first(layers, 128, 16 * KIB),
        "pages of 64 KiB, layers first": layers_first(layers, 96, 64 * KIB),
        "pages of 16 KiB, blocks first": blocks_first(layers, 128, 16 * KIB),
        "pages of 64 KiB, blocks first, gaps": blocks_first(layers, 96, 64 * KIB, gap=256),
    }
    return found if device == CUDA else dict(list(found.items())[::3])


def check(tools: Tools, outcome: Outcome) -> None:
    for path in paths_of(tools.device):
        for name, settings in _cases(tools.device, path).items():
            with Handoffs(tools, settings) as handoffs:
                found = _whole(handoffs, f"{path}: {name}")
                found.append(_withdrawn(handoffs, f"{path}: {name}, withdrawn"))
            outcome.checks += found
            for one in found:
                verdict = "equal" if one.passed else f"WRONG: {one.detail}"
                print(f"  {one.what}: {verdict}", flush=True)


def _cases(device: str, path: str) -> dict[str, Settings]:
    """By name."""
    found = {
        name: Settings(path, geometry, STAGING_MIB) for name, geometry in geometries(device).items()
    }
    if device == CUDA:
        for kib in (16, 64):
            like = layers_first(24, 96, kib * KIB)
            found[f"unlike layouts, {kib} KiB"] = unlike_settings(path, like, STAGING_MIB)
    return found


def _whole(handoffs: Handoffs, what: str) -> list[Check]:
    """Handoffs of several numbers of blocks, between blocks in no order. P's are filled, and D's
    cleared, after the services were called."""
    checks = []
    for seed, (count, groups) in enumerate(product(COUNTS, GROUPS), 1):
        geometry = handoffs.settings.geometry
        source, target = (some_blocks(geometry, count, seed * 2 + side) for side in (0, 1))
        handed = handoffs.new_ticket()
        handoffs.ask("compute", handed, source, seed, groups)
        handoffs.memory.clear()
        handoffs.fetch(handed, target)
        report = handoffs.wait().report
        handoffs.answer()
        wrong = handoffs.memory.wrong_bytes(target, seed)
        faults = [f"{wrong} bytes differ"] if wrong else []
        if report.retries:
            faults.append(f"{report.retries} requests again, {report.digest_mismatches} digests")
        layers = f"{groups} groups of layers" if groups > 1 else "all layers at once"
        name = f"{what}, {count} blocks, {layers}"
        checks.append(Check(name, not faults, ", ".join(faults)))
    return checks


def _withdrawn(handoffs: Handoffs, what: str) -> Check:
    """P takes the blocks back while they are read and spoils them; what arrives is right. P may
    also give a handoff up, when it finds the blocks gone as it begins to read them."""
    geometry, wrong, given_up = handoffs.settings.geometry, dict[float, int](), 0
    for seed, wait_s in enumerate(WITHDRAW_AFTER_S, 11):
        chosen = some_blocks(geometry, 2 * WITHDRAWN_BLOCKS, seed)
        source, later = chosen[:WITHDRAWN_BLOCKS], chosen[WITHDRAWN_BLOCKS:]
        target = some_blocks(geometry, WITHDRAWN_BLOCKS, -seed)
        handoffs.memory.clear()
        handoffs.call("fill", source, seed)
        handed = handoffs.new_ticket()
        handoffs.ask("preempt", handed, source, later, seed, wait_s)
        handoffs.fetch(handed, target)
        ended = handoffs.end()
        handoffs.answer()
        if GIVEN_UP in ended.message:
            given_up += 1
            continue
        checked(ended)
        wrong[wait_s] = handoffs.memory.wrong_bytes(target, seed)
    found = {f"{wait_s * 1000:g} ms": count for wait_s, count in wrong.items() if count}
    detail = f"bytes that differ, by when it was: {found}" if found else ""
    return Check(what, bool(wrong) and not found, detail or f"{given_up} were given up")
