"""The span id of a request in a trace. The gateway and the exporter of spans both derive it from
the request id, so that neither sends it to the other."""

from __future__ import annotations

import hashlib


def span_id(request_id: str) -> str:
    """16 hexadecimal digits."""
    return hashlib.sha256(request_id.encode()).hexdigest()[:16]
