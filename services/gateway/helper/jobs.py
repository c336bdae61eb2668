"""What the gateway asks a helper to do, what it answers, and what each job may cost."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from common.config import RequestLimits
from common.errors import BatonError, Code
from common.messages import Structured
from services.gateway.api.bounds import PARAM
from services.gateway.api.kinds import Kind, RequestSpec
from services.gateway.api.routes import Route
from services.gateway.full_api.port import CheckedBody

#: Wall time of a job that is bounded in CPU time: so many times that, since the machine is shared.
WALL_FACTOR = 10.0
#: A body over this, a grammar and an answer may take long; such jobs leave one helper free.
SMALL_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class JobLimits:
    """The kernel ends a helper that passes one of these."""

    wall_seconds: float
    #: 0: not bounded by CPU time.
    cpu_seconds: float
    memory_bytes: int


class TooSlowError(BatonError):
    """A job took more time than it may; on an idle machine it might not have."""


class _BodyJob(msgspec.Struct, frozen=True):
    """A job that is bounded by `check_ms_max` and `check_mib_max`."""

    body: bytes
    #: The longest sequence that the fleet takes, in tokens.
    context: int

    @property
    def is_slow(self) -> bool:
        return len(self.body) > SMALL_BYTES

    def limits(self, limits: RequestLimits) -> JobLimits:
        cpu = limits.check_ms_max / 1000
        return JobLimits(cpu * WALL_FACTOR, cpu, limits.check_mib_max << 20)

    def too_much(self, limits: RequestLimits, *, too_slow: bool) -> BatonError:  # noqa: ARG002 - one sentence for both
        return BatonError(
            Code.INVALID_REQUEST,
            f"this request takes more than {limits.check_ms_max:.0f} ms of CPU time "
            f"(gateway.limits.check_ms_max) or {limits.check_mib_max} MiB "
            "(gateway.limits.check_mib_max)",
        )


class PlainJob(_BodyJob, frozen=True, tag="plain", kw_only=True):
    """Check a body of the plain path, render and tokenize it. Answered by a `PlainReport`."""

    kind: Kind
    request_id: str
    deadline_ms: float


class ApiJob(_BodyJob, frozen=True, tag="api", kw_only=True):
    """Check a body of the full API, render and tokenize it. Answered by an `ApiReport`."""

    route: Route


class AnswerJob(_BodyJob, frozen=True, tag="answer", kw_only=True):
    """Write the answer to a request of the full API that was checked. `body` is what the check has
    left of it. Answered by an `ApiReport`."""

    route: Route
    #: Of the HTTP request.
    request_id: str
    checked: CheckedBody
    #: What the engines sent for each generation.
    deltas: dict[str, list[msgspec.Raw]]

    @property
    def is_slow(self) -> bool:
        return True

    def limits(self, limits: RequestLimits) -> JobLimits:
        cpu = limits.answer_ms_max / 1000
        return JobLimits(cpu * WALL_FACTOR, cpu, limits.answer_mib_max << 20)

    def too_much(self, limits: RequestLimits, *, too_slow: bool) -> BatonError:  # noqa: ARG002 - one sentence for both
        return BatonError(
            Code.INVALID_REQUEST,
            f"this answer takes more than {limits.answer_ms_max:.0f} ms of CPU time "
            f"(gateway.limits.answer_ms_max) or {limits.answer_mib_max} MiB "
            "(gateway.limits.answer_mib_max) to write",
        )


class GrammarJob(msgspec.Struct, frozen=True, tag="grammar"):
    """Compile a structure. Answered by `Compiled`."""

    structured: Structured

    @property
    def is_slow(self) -> bool:
        return True

    def limits(self, limits: RequestLimits) -> JobLimits:
        """No bound of CPU time, because the compiler has threads."""
        return JobLimits(limits.grammar_ms_max / 1000, 0.0, limits.grammar_mib_max << 20)

    def too_much(self, limits: RequestLimits, *, too_slow: bool) -> BatonError:
        if too_slow:
            what = f"{limits.grammar_ms_max:.0f} ms (gateway.limits.grammar_ms_max)"
            sentence = f"{PARAM}: it does not compile within {what}"
            return TooSlowError(Code.INVALID_REQUEST, sentence, param=PARAM)
        what = f"{limits.grammar_mib_max} MiB (gateway.limits.grammar_mib_max)"
        sentence = f"{PARAM}: it does not compile within {what}, or breaks the compiler"
        return BatonError(Code.INVALID_REQUEST, sentence, param=PARAM)


class Greeting(msgspec.Struct, frozen=True, tag="greeting"):
    """The first report of each helper."""

    pid: int


class Leaving(msgspec.Struct, frozen=True, tag="leaving"):
    """The last report but one of a helper that has kept too much memory: it takes no more jobs."""


class Unusable(msgspec.Struct, frozen=True, tag="unusable"):
    """The first and last report where the model's text classes cannot be loaded."""

    reason: str


class Refusal(msgspec.Struct, frozen=True, tag="refusal"):
    """A BatonError on its way back."""

    code: Code
    message: str
    param: str | None = None

    @property
    def error(self) -> BatonError:
        return BatonError(self.code, self.message, param=self.param)


class OutOfMemory(msgspec.Struct, frozen=True, tag="out_of_memory"):
    """The job passed its bound of memory, and the helper noticed itself."""


class Compiled(msgspec.Struct, frozen=True, tag="compiled"):
    """The structure compiles."""


class PlainReport(msgspec.Struct, frozen=True, tag="plain"):
    spec: RequestSpec
    #: Fields that were passed over.
    ignored: list[str]


class ApiReport(msgspec.Struct, frozen=True, tag="api"):
    checked: CheckedBody


Job = PlainJob | ApiJob | AnswerJob | GrammarJob
Result = Refusal | OutOfMemory | Compiled | PlainReport | ApiReport
Report = Greeting | Leaving | Unusable | Result

job_decoder = msgspec.msgpack.Decoder(Job)
report_decoder: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)
encode = msgspec.msgpack.Encoder().encode
