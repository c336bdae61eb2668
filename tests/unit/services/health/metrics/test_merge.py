"""One page of metrics out of many, and what is read off one."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from services.health.metrics.merge import merged, sample

G0 = """# HELP baton_x_total Things
# TYPE baton_x_total counter
baton_x_total 3.0
baton_x_total{code="a b"} 4.0
# HELP process_open_fds Files
# TYPE process_open_fds gauge
process_open_fds 12.0
"""
G1 = """# HELP baton_x_total Things
# TYPE baton_x_total counter
baton_x_total 5.0
"""


def test_each_family_once_each_sample_with_its_daemon() -> None:
    page = merged({("gateway", "g0"): G0, ("gateway", "g1"): G1})
    assert page.count("# HELP baton_x_total") == page.count("# TYPE baton_x_total") == 1
    families = {family.name: family for family in text_string_to_metric_families(page)}
    values = {
        (sample.labels["daemon"], sample.labels.get("code", "")): sample.value
        for sample in families["baton_x"].samples
    }
    assert values == {("g0", ""): 3.0, ("g0", "a b"): 4.0, ("g1", ""): 5.0}
    assert families["process_open_fds"].samples[0].labels["service"] == "gateway"


def test_samples_stand_together_and_comments_are_not_samples() -> None:
    lines = merged({("gateway", "g0"): G0, ("gateway", "g1"): G1}).splitlines()
    of_x = [index for index, line in enumerate(lines) if line.startswith("baton_x_total")]
    assert of_x == list(range(of_x[0], of_x[0] + 3))
    assert merged({("gateway", "g0"): "stray 1\n# EOF\n"}) == ""


def test_a_sample_is_read_by_its_whole_name() -> None:
    assert sample(G0, "process_open_fds") == 12.0
    assert sample(G0, "process_open") is None
    assert sample("", "x") is None
