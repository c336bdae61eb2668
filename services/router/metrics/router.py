"""The router's `/metrics`: the answers of its verbs, and sums over the timelines.

Every router of a fleet exports the fleet's numbers, so queries take the maximum and not the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from common.messages import Role
from common.telemetry.exposition import histogram
from services.router.admin.verb import View
from services.router.admin.verbs import kv, status
from services.router.metrics.degradation import degradation_metrics
from services.router.metrics.kv import kv_metrics
from services.router.metrics.status import router_metrics
from services.router.records.worker import Worker
from services.router.tables import SharedTables, Tables
from services.router.timeline.traffic import Traffic


class RouterMetrics(Collector):
    def __init__(self, view: Callable[[], View]) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        view = self._view()
        shared = view.shared
        yield from router_metrics(status.run(view, {}))
        yield from kv_metrics(kv.run(view, {"worker": "", "limit": 0}))
        yield from _workers(shared)
        yield from _phases(shared)
        yield from _moves(shared)
        yield from _pairs(shared.recorder.traffic)
        yield _refused(shared)
        detectors = {model: tables.degradation for model, tables in shared.models.items()}
        yield from degradation_metrics(detectors, view.now)


def _workers(shared: SharedTables) -> Iterator[Metric]:
    there = [worker for worker in shared.workers() if worker.connected]
    used = GaugeMetricFamily(
        "baton_router_worker_kv_used_ratio",
        "Share of a worker's KV blocks in use, as it said last",
        labels=["model", "worker", "role"],
    )
    step = GaugeMetricFamily(
        "baton_router_worker_step_age_seconds",
        "Since a worker's engine made its last step while it has work",
        labels=["model", "worker", "role"],
    )
    for worker in there:
        names = [worker.model, worker.name, worker.role.value]
        used.add_metric(names, worker.load.kv_used)
        step.add_metric(names, worker.load.step_age_ms / 1000)
    yield used
    yield step
    yield from _rates(there)
    busy = GaugeMetricFamily(
        "baton_router_utilisation_ratio",
        "Prefill: share of the ready workers that compute a prompt; decode: share of slots in use",
        labels=["model", "phase"],
    )
    for tables in shared.models.values():
        workers = list(tables.workers.values())
        for role in (Role.PREFILL, Role.DECODE):
            share = _share(_of(workers, role), computing=role is Role.PREFILL)
            busy.add_metric([tables.model, role.value], share)
    yield busy
    yield GaugeMetricFamily(
        "baton_router_workers_known",
        "Workers that said Hello and are connected, ready or not",
        value=len(there),
    )


def _rates(workers: list[Worker]) -> Iterator[Metric]:
    """What workers say that they compute in each phase."""
    labels = ["model", "worker", "role"]
    tokens = GaugeMetricFamily(
        "baton_router_worker_tokens_per_second",
        "Tokens that a worker computed in the last 10 s, by phase",
        labels=[*labels, "phase"],
    )
    gpu = GaugeMetricFamily(
        "baton_router_worker_gpu_busy_ratio",
        "Share of the time in which a worker's GPUs computed, by NVML",
        labels=labels,
    )
    memory = GaugeMetricFamily(
        "baton_router_worker_gpu_memory_busy_ratio",
        "Share of the time in which the memory of a worker's GPUs was used, by NVML",
        labels=labels,
    )
    for worker in workers:
        names, phases = [worker.model, worker.name, worker.role.value], worker.phases
        if phases is None:
            continue
        tokens.add_metric([*names, "prefill"], phases.prefill_tokens_per_s)
        tokens.add_metric([*names, "decode"], phases.decode_tokens_per_s)
        if phases.gpu_busy >= 0:
            gpu.add_metric(names, phases.gpu_busy)
            memory.add_metric(names, phases.gpu_memory_busy)
    yield from (tokens, gpu, memory)


def _of(workers: list[Worker], role: Role) -> list[Worker]:
    return [worker for worker in workers if role in worker.role.parts and worker.ready]


def _share(workers: list[Worker], *, computing: bool) -> float:
    if computing:
        return sum(bool(worker.queued_tokens) for worker in workers) / max(1, len(workers))
    slots = sum(worker.capacity.max_num_seqs for worker in workers)
    return sum(len(worker.held) for worker in workers) / max(1, slots)


def imbalance(tables: Tables) -> float | None:
    """Requests per second that the prefill workers could compute, divided by those that the decode
    workers could finish, at the mean sizes so far; None before the first request."""
    traffic, estimates = tables.recorder.traffic_of(tables.model), tables.estimates
    if not traffic.requests or not traffic.made or not traffic.computed:
        return None
    prompt = traffic.computed / traffic.requests
    prefills = _of(list(tables.workers.values()), Role.PREFILL)
    prefill = len(prefills) / max(1e-9, estimates.prefill_seconds(round(prompt)))
    decode = 0.0
    for worker in _of(list(tables.workers.values()), Role.DECODE):
        slots = worker.capacity.max_num_seqs
        residence_s = estimates.step_seconds(slots) * traffic.made / traffic.requests
        decode += slots / max(1e-9, residence_s)
    return prefill / decode if decode else None


def _phases(shared: SharedTables) -> Iterator[Metric]:
    traffic = {model: shared.recorder.traffic_of(model) for model in shared.models}
    yield histogram(
        "baton_router_phase_seconds",
        "Time of requests in each phase of their timeline",
        {
            (model, phase): buckets
            for model, of_model in traffic.items()
            for phase, buckets in of_model.phases.items()
        },
        "model",
        "phase",
    )
    tokens = CounterMetricFamily(
        "baton_router_tokens",
        "Prompt tokens prefilled and tokens decoded",
        labels=["model", "phase"],
    )
    for model, of_model in traffic.items():
        tokens.add_metric([model, "prefill"], of_model.computed)
        tokens.add_metric([model, "decode"], of_model.made)
    yield tokens
    yield from _imbalances(shared)
    yield CounterMetricFamily(
        "baton_router_timelines_forgotten",
        "Timelines that were never made, for too many waited",
        value=shared.recorder.forgotten,
    )


def _refused(shared: SharedTables) -> Metric:
    refused = CounterMetricFamily(
        "baton_router_model_requests_refused",
        "Attempts that were refused, by model; without a name, of models that are not served",
        labels=["model", "code"],
    )
    for labels, count in shared.counts.refused_of_model.items():
        refused.add_metric(labels, count)
    return refused


def _moves(shared: SharedTables) -> Iterator[Metric]:
    moves = CounterMetricFamily(
        "baton_router_moves",
        "Running streams that left their decode worker, by why and what became of them",
        labels=["reason", "outcome"],
    )
    for (reason, outcome), count in shared.counts.moves.items():
        moves.add_metric([reason.value, outcome.value], count)
    yield moves
    yield histogram(
        "baton_router_move_pause_seconds",
        "From the end of a stream at one decode worker to its next token at another",
        {(): shared.counts.move_pauses},
    )
    yield histogram(
        "baton_router_park_pause_seconds",
        "From the end of a stream that was parked for its KV budget to its next token",
        {(): shared.counts.park_pauses},
    )
    size = CounterMetricFamily(
        "baton_router_move_bytes", "Bytes of KV that came with moves, by why", labels=["reason"]
    )
    for reason, moved in shared.counts.move_bytes.items():
        size.add_metric([reason.value], moved)
    yield size
    yield CounterMetricFamily(
        "baton_router_kv_grants",
        "Streams that were promised KV for another budget where they run",
        value=shared.counts.grants,
    )


def _imbalances(shared: SharedTables) -> Iterator[Metric]:
    """Of a fleet with several models, only by model."""
    help_ = "Prefill capacity divided by decode capacity, in requests as they were so far"
    by_model = GaugeMetricFamily(
        "baton_router_model_phase_imbalance_ratio", f"{help_}, by model", labels=["model"]
    )
    for tables in shared.models.values():
        ratio = imbalance(tables)
        if ratio is None:
            continue
        by_model.add_metric([tables.model], ratio)
        if len(shared.models) == 1:
            yield GaugeMetricFamily("baton_router_phase_imbalance_ratio", help_, value=ratio)
    yield by_model


def _pairs(traffic: Traffic) -> Iterator[Metric]:
    for field, name, help_, scale in (
        ("handoffs", "handoffs", "KV handoffs that came through", 1.0),
        ("bytes", "bytes", "KV bytes handed over", 1.0),
        ("ms", "transfer_seconds", "From first to last data of those handoffs", 1e-3),
        ("retries", "retries", "Handoffs tried again", 1.0),
        ("digest_mismatches", "digest_mismatches", "Messages whose digest did not match", 1.0),
        ("failures", "failures", "Handoffs that never came; decode computed the prompt", 1.0),
    ):
        family = CounterMetricFamily(f"baton_pair_{name}", help_, labels=["prefill", "decode"])
        for (prefill, decode), pair in traffic.pairs.items():
            family.add_metric([prefill, decode], asdict(pair)[field] * scale)
        yield family
