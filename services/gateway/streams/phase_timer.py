"""Where one request's time goes, as its gateway sees it. Sans-IO: every instant is an argument.

A `PhaseTimer` keeps two accounts of the same instants:

- `spans`: consecutive phases of one request with the attempt of each, for the router's record. A
  request is in exactly one phase from the arrival of its head to its end, so the spans sum to the
  whole. The phase changes where the request's state does (`requests/request.py`). The silence
  between the last token of a stream and the moment its worker is found lost is recovery, not
  decode.
- `client_phases`: four phases of one HTTP request, for `server-timing` and `x-timings`: intake
  (read, checked, rendered and tokenized), queue (until the router names a worker), prefill (until
  the first token, the handoff of the KV included) and decode (until now, pauses for a lost worker
  included).

An HTTP request may need several generations, such as `n` choices. Each has a timer of its own
(`sibling`). All of them share the client's phases, which begin where the first of them gets.
"""

from __future__ import annotations

from common.messages import Leg

INTAKE, HELD, QUEUE, PLACED, DECODE, RECOVERY = (
    "intake", "held", "queue", "placed", "decode", "recovery",
)  # fmt: skip
SPANS_MAX = 64
"""The last span of a request that is moved more often takes the rest of its time."""
CLIENT_QUEUE, CLIENT_PREFILL, CLIENT_DECODE = "queue", "prefill", "decode"


class PhaseTimer:
    """Instants are seconds of the core's monotonic clock."""

    __slots__ = (
        "_attempt", "_client_marks", "_name", "_since", "_spans",
        "arrived", "first_token", "gap_max", "last_token", "messages",
    )  # fmt: skip

    def __init__(self, arrived: float, client_marks: dict[str, float] | None = None) -> None:
        #: When the head of the HTTP request was complete.
        self.arrived = arrived
        #: When the first token came; 0 before.
        self.first_token = 0.0
        #: When the latest token came; 0 before the first.
        self.last_token = 0.0
        #: Messages with tokens.
        self.messages = 0
        #: The longest wait between two messages with tokens, in seconds.
        self.gap_max = 0.0
        self._name, self._attempt, self._since = INTAKE, 1, arrived
        self._spans: list[Leg] = []
        #: When each of the client's phases began; shared with the siblings.
        self._client_marks = {} if client_marks is None else client_marks

    def sibling(self) -> PhaseTimer:
        """The timer of a further generation for the same HTTP request."""
        return PhaseTimer(self.arrived, self._client_marks)

    def enter(self, phase: str, attempt: int, now: float) -> None:
        """The next phase begins at `now`, or at the last token where a stream broke off."""
        marks = self._client_marks
        if self._name == INTAKE:
            marks.setdefault(CLIENT_QUEUE, now)
        if phase == PLACED:
            # A token may overtake the placement; then no prefill was seen.
            marks.setdefault(CLIENT_PREFILL, marks.get(CLIENT_DECODE, now))
        same = (phase, attempt) == (self._name, self._attempt)
        if same or len(self._spans) >= SPANS_MAX - 1:
            return
        self._close(self.last_token if self._name == DECODE else now)
        self._name, self._attempt = phase, attempt

    def output_began(self, now: float) -> None:
        """The client's decode phase begins. Call it before the first token is written, because an
        answer that ends with it carries its timings."""
        self._client_marks.setdefault(CLIENT_DECODE, now)

    def token(self, now: float) -> float:
        """Records a message with tokens. Returns the seconds since the one before; 0 for the
        first."""
        last, self.last_token = self.last_token, now
        self.messages += 1
        if not last:
            self.first_token = now
            return 0.0
        gap = now - last
        self.gap_max = max(self.gap_max, gap)
        return gap

    def spans(self, now: float) -> tuple[Leg, ...]:
        """All phases of the request; the last one ends at `now`. Call it once."""
        self._close(now)
        return tuple(self._spans)

    def client_phases(self, now: float) -> dict[str, float]:
        """Milliseconds by name, of the phases that have begun; the last one ends at `now`."""
        marks, names = self._client_marks, (CLIENT_QUEUE, CLIENT_PREFILL, CLIENT_DECODE)
        begun = [(INTAKE, self.arrived), *((name, marks[name]) for name in names if name in marks)]
        ends = [at for _, at in begun[1:]] + [now]
        return {name: (end - at) * 1000 for (name, at), end in zip(begun, ends, strict=True)}

    def _close(self, now: float) -> None:
        self._spans.append(Leg(self._name, self._attempt, (now - self._since) * 1000))
        self._since = now
