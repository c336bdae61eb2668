"""What the gateway asks a helper to do, what it answers, and what each job may cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import msgspec

from common.config import RequestLimits
from common.errors import BatonError, Code
from common.messages import Structured
from services.gateway.api.bounds import PARAM
from services.gateway.api.kinds import Kind, RequestSpec
from services.gateway.api.routes import POOLED, Route
from services.gateway.full_api.port import CheckedBody

#: A body over this, a grammar and an answer may take long; such jobs leave one helper free.
SMALL_BYTES = 64 << 10
#: What checking and rendering such a body takes is a few milliseconds, so the gateway itself does
#: it.
INLINE_BYTES_MAX = 8_192
IMAGE = b"image"


@dataclass(frozen=True, slots=True)
class JobLimits:
    """The kernel ends a helper that passes one of these. `name`: of their fields in
    `[gateway.limits]`."""

    name: str
    #: Of all threads together.
    cpu_ms: float
    memory_mib: int

    def too_much(self, job: Job) -> BatonError:
        """What the client is told of a job that passed one."""
        return BatonError(
            Code.INVALID_REQUEST,
            f"{job.work} takes more than {self.cpu_ms:.0f} ms of CPU time "
            f"(gateway.limits.{self.name}_ms_max) or {self.memory_mib} MiB "
            f"(gateway.limits.{self.name}_mib_max)",
            param=job.param,
        )


class _BodyJob(msgspec.Struct, frozen=True):
    """A job that is bounded by `check_ms_max` and `check_mib_max`."""

    work: ClassVar[str] = "this request"
    param: ClassVar[str | None] = None
    body: bytes
    #: The longest sequence that the fleet takes, in tokens.
    context: int

    @property
    def is_slow(self) -> bool:
        return len(self.body) > SMALL_BYTES

    def limits(self, limits: RequestLimits) -> JobLimits:
        return JobLimits("check", limits.check_ms_max, limits.check_mib_max)


class PlainJob(_BodyJob, frozen=True, tag="plain", kw_only=True):
    """Check a body of the plain path, render and tokenize it. Answered by a `PlainReport`."""

    kind: Kind
    request_id: str
    deadline_ms: float
    #: Id of the LoRA adapter that the body asks for; empty: none.
    adapter: str = ""


class ShapeJob(_BodyJob, frozen=True, tag="shape", kw_only=True):
    """Check what can be checked of a body of the full API without vLLM. Answered by a
    `ShapeReport`."""

    route: Route


class ApiJob(_BodyJob, frozen=True, tag="api", kw_only=True):
    """Check a body of the full API, render and tokenize it. Answered by an `ApiReport`."""

    route: Route
    #: Images that were fetched for it, by URL.
    images: dict[str, bytes] = {}
    #: As in `PlainJob`.
    adapter: str = ""

    def limits(self, limits: RequestLimits) -> JobLimits:
        if self.route in POOLED:
            return JobLimits("inputs", limits.inputs_ms_max, limits.inputs_mib_max)
        if not self._may_have_images:
            return super().limits(limits)
        return JobLimits("images", limits.images_ms_max, limits.images_mib_max)

    @property
    def is_slow(self) -> bool:
        return self._may_have_images or super().is_slow

    @property
    def _may_have_images(self) -> bool:
        """Each part that is one says so, in whichever of the APIs' words."""
        return IMAGE in self.body


class AnswerJob(_BodyJob, frozen=True, tag="answer", kw_only=True):
    """Write the answer to a request of the full API that was checked. `body` is what the check has
    left of it. Answered by an `ApiReport`."""

    work: ClassVar[str] = "writing this answer"
    route: Route
    #: Of the HTTP request.
    request_id: str
    checked: CheckedBody
    #: What the engines sent for each generation.
    deltas: dict[str, list[msgspec.Raw]]
    #: As in `PlainJob`.
    adapter: str = ""

    @property
    def is_slow(self) -> bool:
        return True

    def limits(self, limits: RequestLimits) -> JobLimits:
        return JobLimits("answer", limits.answer_ms_max, limits.answer_mib_max)


class GrammarJob(msgspec.Struct, frozen=True, tag="grammar"):
    """Compile a structure. Answered by `Compiled`."""

    work: ClassVar[str] = f"{PARAM}: compiling it"
    param: ClassVar[str | None] = PARAM
    structured: Structured

    @property
    def is_slow(self) -> bool:
        return True

    def limits(self, limits: RequestLimits) -> JobLimits:
        return JobLimits("grammar", limits.grammar_ms_max, limits.grammar_mib_max)


class Greeting(msgspec.Struct, frozen=True, tag="greeting"):
    """The first report of each helper."""

    pid: int


class Leaving(msgspec.Struct, frozen=True, tag="leaving"):
    """The last report but one of a helper that has kept too much memory: it takes no more jobs."""


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """The last report of all: the helper has ended."""

    #: As the subprocess module has it: that of a signal is negative.
    exit_code: int


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


class ShapeReport(msgspec.Struct, frozen=True, tag="shape"):
    """Nothing is wrong with it so far."""


class ApiReport(msgspec.Struct, frozen=True, tag="api"):
    checked: CheckedBody


Job = PlainJob | ShapeJob | ApiJob | AnswerJob | GrammarJob
Result = Refusal | OutOfMemory | Compiled | PlainReport | ShapeReport | ApiReport
Report = Greeting | Leaving | Ended | Unusable | Result

job_decoder = msgspec.msgpack.Decoder(Job)
report_decoder: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)
encode = msgspec.msgpack.Encoder().encode
encode_into = msgspec.msgpack.Encoder().encode_into
