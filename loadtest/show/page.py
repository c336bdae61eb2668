"""One HTML file that needs nothing beside it: tables, plots, and where the figures come from."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import jinja2

from common.errors import ConfigError
from loadtest.bench import table
from loadtest.bench.figures import Figures, Spread
from loadtest.bench.result import Result
from loadtest.provenance import sentence
from loadtest.show import plots
from loadtest.slo import shown

TEMPLATE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 68rem; padding: 0 1rem;
  color: #1c2430 }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse } td, th { padding: .2rem .9rem .2rem 0; text-align: right }
td:first-child, th:first-child { text-align: left } tr + tr { border-top: 1px solid #e3e6ea }
img { max-width: 100% } .bad { color: #b03024 } small, code { color: #5b6472 }
</style></head><body>
<h1>{{ title }}</h1>
{% for line in bad %}<p class="bad">{{ line }}</p>{% endfor %}
{% for line in lead %}<p>{{ line }}</p>{% endfor %}
{% if picture %}<img alt="plots" src="data:image/png;base64,{{ picture }}">
{% else %}<p><small>{{ without }}</small></p>{% endif %}
{% for name, head, rows in tables %}<h2>{{ name }}</h2>
<table><tr>{% for cell in head %}<th>{{ cell }}</th>{% endfor %}</tr>
{% for row in rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table>{% endfor %}
<h2>Where this comes from</h2>
<p><code>{{ command }}</code></p><p><small>{{ origin }}</small></p>
</body></html>
"""
HEAD = ("milliseconds", "count", "p50", "p90", "p99", "max", "mean")
Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]


def load(result: Result) -> str:
    """The page of one load."""
    work = result.workload
    lines = list(table.lines(result))
    wrong = [line.strip() for line in lines if line.startswith(("PARTIAL", "  ", "note"))]
    return render(
        title=f"Load: {work.source}, {work.arrivals}",
        bad=[line for line in wrong if not line.startswith("of it in the server")],
        lead=[_counts(result.all), f"Model {work.model} at {work.url}, seed {work.seed}."],
        picture=lambda: plots.load(result),
        tables=_tables(result),
        command=work.command,
        origin=sentence(result.provenance),
    )


def render(**parts: object) -> str:
    """`picture` is a function to PNG bytes that may raise ConfigError."""
    picture, without = "", ""
    make = parts.pop("picture")
    try:
        picture = base64.b64encode(make()).decode()  # type: ignore[operator]
    except ConfigError as error:
        without = error.message
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    made = environment.from_string(TEMPLATE)
    return made.render(picture=picture, without=without, **parts)


def _counts(of: Figures) -> str:
    return (
        f"{of.requests} requests: {of.ok} ok, {of.failed} failed, {of.unfinished} unfinished, in "
        f"{of.seconds:.1f} s; {of.requests_per_s:.2f} requests/s, {of.input_tokens_per_s:.0f} "
        f"tokens/s in, {of.output_tokens_per_s:.0f} out."
    )


def _tables(result: Result) -> list[Table]:
    all_ = result.all
    rows = [
        ("TTFT", all_.ttft_ms),
        ("TTFT as the server saw it", all_.server_first_ms),
        ("ITL", all_.itl_ms),
        ("TPOT", all_.tpot_ms),
        ("longest stall of an answer", all_.stall_ms),
        ("E2E", all_.e2e_ms),
        ("sent late by this client", all_.late_ms),
    ]
    title = (
        f"Latency; goodput {all_.goodput_rps:.2f} requests/s, {all_.attainment:.1%} within the SLO "
        f"({shown(result.workload.slo)})"
    )
    tables: list[Table] = [(title, HEAD, [_row(*pair) for pair in rows if pair[1].count])]
    if result.phases:
        shares = [_row(*pair) for pair in result.phases.items()]
        tables.append(("Phases, by the router's timeline of sampled requests", HEAD, shares))
    for kind, figures in result.by_kind.items():
        kinds = [("TTFT", figures.ttft_ms), ("TPOT", figures.tpot_ms), ("E2E", figures.e2e_ms)]
        name = f"{kind}: {figures.ok} of {figures.requests} ok"
        tables.append((name, HEAD, [_row(*pair) for pair in kinds]))
    if all_.errors:
        errors = [(error, str(count)) for error, count in all_.errors.items()]
        tables.append(("Errors", ("kind", "count"), errors))
    return tables


def _row(name: str, of: Spread) -> tuple[str, ...]:
    values = (of.p50, of.p90, of.p99, of.max, of.mean)
    return (name, str(of.count), *(f"{value:.1f}" for value in values))
