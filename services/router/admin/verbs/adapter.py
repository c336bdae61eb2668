"""`adapter`: LoRA adapters by worker; `load` and `unload` order all workers of the model.

Workers answer within a moment; `list` shows what came of it, with the reason where a worker could
not load one. An order holds until the router restarts, for workers that join later, too.
"""

from __future__ import annotations

from collections.abc import Iterator

from common.errors import BatonError, Code
from common.messages import AdapterStatus
from common.model.adapters import name_of_adapter, why_no_name
from common.net.admin_rows import AdapterRow
from common.net.admin_verbs import Value
from services.router.admin.verb import View
from services.router.events import AdapterOrdered
from services.router.records.worker import Worker
from services.router.rules.operator import adapter_holders
from services.router.tables import Tables


def run(view: View, args: dict[str, Value]) -> list[AdapterRow]:
    action, name, model = str(args["action"]), str(args["name"]), str(args["model"])
    path = str(args["path"])
    if action == "list":
        return _rows(view, name, model)
    fault = why_no_name(name)
    if fault:
        raise BatonError(Code.INVALID_REQUEST, f"adapter {action}: {fault}; give it as name=")
    if (action == "load") is not bool(path):
        need = "needs path=, a folder on the workers' hosts" if action == "load" else "has no path"
        raise BatonError(Code.INVALID_REQUEST, f"adapter {action} {need}")
    tables = _base(view, name, model, loads=action == "load")
    taken = [model for model in view.shared.models if model == name]
    if taken:
        raise BatonError(Code.INVALID_REQUEST, f"a model has the name {name!r}; choose another")
    if not path and not adapter_holders(tables, name):
        raise BatonError(Code.NOT_FOUND, f"no worker has an adapter {name!r}; `adapter` lists them")
    view.act(AdapterOrdered(tables.model, name, path))
    return _rows(view, name, tables.model)


def _base(view: View, name: str, model: str, *, loads: bool) -> Tables:
    """The tables of the model that is meant."""
    models = view.shared.models
    if model in models or (len(models) == 1 and not model):
        return models[model] if model else view.tables
    holders = [tables for tables in models.values() if adapter_holders(tables, name)]
    if not model and not loads and holders:
        return holders[0]
    what = f"no model {model[:64]!r}" if model else "say of which model, with model="
    raise BatonError(Code.INVALID_REQUEST, f"{what}; there are: {', '.join(models)}")


def _rows(view: View, name: str, model: str) -> list[AdapterRow]:
    rows = [
        row
        for tables in view.shared.models.values()
        for worker in sorted(tables.workers.values(), key=lambda w: w.name)
        if not worker.away
        for row in _of_worker(tables, worker)
    ]
    return [r for r in rows if name in ("", r.adapter) and model in ("", r.model)]


def _of_worker(tables: Tables, worker: Worker) -> Iterator[AdapterRow]:
    orders = tables.adapter_orders.latest
    waiting = {name: one for name, one in orders.items() if worker.identity in one.waiting}
    for status in worker.adapter_statuses:
        name = status.id if status.error else name_of_adapter(status.id)
        order = waiting.pop(name, None)
        yield _row(tables, worker, name, status, waits=order is not None)
    for name, order in waiting.items():
        status = AdapterStatus(id=name, path=order.path)
        yield _row(tables, worker, name, status, waits=True)


def _row(
    tables: Tables, worker: Worker, name: str, status: AdapterStatus, *, waits: bool
) -> AdapterRow:
    state = "in memory" if status.resident else "loaded"
    if waits or status.error:
        state = "waiting" if waits else "failed"
    return AdapterRow(
        adapter=name,
        model=tables.model,
        worker=worker.name,
        role=worker.role.value,
        state=state,
        digest=status.id.removeprefix(name).lstrip("@"),
        load_ms=round(status.load_ms, 1),
        path=status.path,
        error=status.error,
    )
