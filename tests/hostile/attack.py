"""One fleet, one healthy stream, and what a hostile body does to it.

The machine itself makes gaps, so each body is judged beside a control: as much time with bodies
that are harmless. A body counts as harmful only if it does harm each of `TRIES` times.
"""

from __future__ import annotations

import http.client
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.hostile.bodies import MIB, TEXT, VECTORS, HostileBody
from tests.rigs.fleet import Fleet, fleet, wait_until
from tests.zoo.pooling import BERT_EMBED, made

TRIES = 3
GAP_SECONDS_MAX = 0.100
ANSWER_SECONDS_MAX = 1.0
RSS_BYTES_MAX = 128 * MIB
FLAGS = ("--engine", "sim", "--mode", "replicated", "--decode", "1")
HARMLESS = b'{"model":"baton-tiny","prompt":"x","max_tokens":1}'
#: Loads vLLM's classes where they are not loaded yet.
FIRST_USE_PATH = "/v1/chat/completions"
FIRST_USE = (
    b'{"model":"baton-tiny","messages":[{"role":"user","content":"x"}],"n":2,"max_tokens":1}'
)
#: While they are. It was 0.8 s and more.
FIRST_USE_GAP_SECONDS_MAX = 0.3


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one body did."""

    body: HostileBody
    #: 0: the connection broke.
    status: int
    seconds: float
    #: The longest time between two chunks of the healthy stream meanwhile.
    gap_seconds: float
    #: The same while a harmless body was answered.
    control_seconds: float
    answer: str = field(repr=False, default="")

    @property
    def harm(self) -> str:
        """Why it is harmful; empty if it is not."""
        found = []
        if self.gap_seconds > max(GAP_SECONDS_MAX, 2 * self.control_seconds):
            found.append(f"a gap of {self.gap_seconds * 1000:.0f} ms")
        if self.status != 200 and not 400 <= self.status < 500:
            found.append(f"status {self.status}")
        if self.status != 200 and self.seconds > ANSWER_SECONDS_MAX:
            found.append(f"answered after {self.seconds:.2f} s")
        return ", ".join(found)


class HealthyStream:
    """A client of its own process that notes when each chunk came. Restarted when it ends."""

    def __init__(self, running: Fleet, folder: Path) -> None:
        self._path = folder / "healthy.times"
        self._path.write_bytes(b"")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.healthy", str(running.port), str(self._path)]
        )
        wait_until("the healthy stream runs", lambda: self._path.stat().st_size > 160, 60)

    def longest_gap(self, since: float) -> float:
        """Seconds between two chunks from `since` until now."""
        now = time.monotonic()
        wait_until("the next chunk", lambda: self._times()[-1] > now, 120)
        times = [at for at in self._times() if at >= since]
        return max(b - a for a, b in zip([since, *times], times, strict=False))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _times(self) -> list[float]:
        with self._path.open("rb") as file:
            file.seek(max(0, self._path.stat().st_size - (1 << 20)))
            lines = file.read().splitlines()
        return [float(line) for line in lines[1:-1]]


class Attack:
    def __init__(self, running: Fleet, stream: HealthyStream) -> None:
        self._fleet = running
        self._stream = stream
        self.gateway = running.children()["g0"]
        self._rss = self.gateway.memory_info().rss
        self._proc = Path(f"/proc/{self.gateway.pid}")
        (self._proc / "clear_refs").write_text("5", encoding="ascii")  # the peak begins here

    def send(self, body: HostileBody) -> Outcome:
        """The best of up to `TRIES` outcomes."""
        data = body.make()
        outcomes: list[Outcome] = []
        while not outcomes or (outcomes[-1].harm and len(outcomes) < TRIES):
            status, seconds, gap, answer = self._post(body.path, data)
            control = self._harmless(seconds)
            outcomes.append(Outcome(body, status, seconds, gap, control, answer))
        return min(outcomes, key=lambda outcome: (bool(outcome.harm), outcome.gap_seconds))

    def _harmless(self, seconds: float) -> float:
        """The stream's longest gap in so many seconds in which only harmless bodies come."""
        gaps, until = [0.0], time.monotonic() + seconds
        while len(gaps) == 1 or time.monotonic() < until:
            gaps.append(self._post("/v1/completions", HARMLESS)[2])
        return max(gaps)

    def first_use(self) -> tuple[float, float]:
        """Seconds until the answer, and the stream's longest gap meanwhile."""
        status, seconds, gap, answer = self._post(FIRST_USE_PATH, FIRST_USE)
        assert status == 200, answer
        return seconds, gap

    @property
    def grown_bytes(self) -> int:
        """By how much the gateway's memory has grown at most since the beginning."""
        lines = (self._proc / "status").read_text(encoding="ascii").splitlines()
        peak = next(line for line in lines if line.startswith("VmHWM:"))
        return (int(peak.split()[1]) << 10) - self._rss

    @property
    def is_the_same_process(self) -> bool:
        return self._fleet.children().get("g0") == self.gateway and self.gateway.is_running()

    def _post(self, path: str, data: bytes) -> tuple[int, float, float, str]:
        began = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self._fleet.port, timeout=120)
        try:
            connection.request("POST", path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            status, answer = response.status, response.read().decode(errors="replace")[:400]
        except OSError as error:
            status, answer = 0, repr(error)
        finally:
            connection.close()
        seconds = time.monotonic() - began
        return status, seconds, self._stream.longest_gap(began), answer


@contextmanager
def attack(text: str = "vllm") -> Iterator[Attack]:
    """`text`: of `[gateway]`."""
    (folder,) = made(BERT_EMBED)
    models = ("--model", TEXT, "--name", TEXT, "--model", str(folder), "--name", VECTORS)
    env = {"BATON_GATEWAY__TEXT": text, f"BATON_MODELS__{VECTORS.upper()}__TASK": "embed"}
    with fleet(*FLAGS, *models, env=env) as running:
        running.wait_ready()
        stream = HealthyStream(running, running.run_dir)
        try:
            yield Attack(running, stream)
        finally:
            stream.close()


def first_use() -> tuple[float, float]:
    """As `Attack.first_use`, the best of up to `TRIES` fleets whose gateway has not loaded vLLM."""
    tries: list[tuple[float, float]] = []
    while not tries or (tries[-1][1] > FIRST_USE_GAP_SECONDS_MAX and len(tries) < TRIES):
        with attack("auto") as running:
            tries.append(running.first_use())
    return min(tries, key=lambda seconds_and_gap: seconds_and_gap[1])


def report(outcomes: list[Outcome], grown: int) -> str:
    """The figures of a run."""
    gaps = sorted(outcome.gap_seconds for outcome in outcomes)
    slowest = max(outcome.seconds for outcome in outcomes)
    statuses: dict[int, int] = {}
    for outcome in outcomes:
        statuses[outcome.status] = statuses.get(outcome.status, 0) + 1
    return json.dumps(
        {
            "bodies": len(outcomes),
            "statuses": statuses,
            "gap_ms_median": round(statistics.median(gaps) * 1000),
            "gap_ms_max": round(gaps[-1] * 1000),
            "answer_s_max": round(slowest, 2),
            "rss_grown_mib": grown >> 20,
        }
    )
