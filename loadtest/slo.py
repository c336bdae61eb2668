"""`ttft=2000,itl=50`: the SLO option of the command lines."""

from __future__ import annotations

from common.errors import ConfigError
from loadtest.capacity.report import Slo

NAMES = {"ttft": "ttft_ms", "itl": "tpot_ms", "tpot": "tpot_ms"}


def parse(text: str) -> Slo:
    """Milliseconds by name. `itl` and `tpot` are one: the mean time of an answer's further tokens,
    which every server can be asked for however it bundles them. Raises ConfigError."""
    limits: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        key = NAMES.get(name.strip())
        try:
            limit = float(value)
        except ValueError:
            limit = 0.0
        if key is None or limit <= 0:
            raise ConfigError("--slo", f"{part!r} is not ttft=MS, itl=MS or tpot=MS")
        limits[key] = limit
    return Slo(**limits)


def shown(slo: Slo) -> str:
    limits = [f"TTFT {slo.ttft_ms:g} ms"] if slo.ttft_ms else []
    limits += [f"TPOT {slo.tpot_ms:g} ms"] if slo.tpot_ms else []
    return ", ".join(limits) or "none"
