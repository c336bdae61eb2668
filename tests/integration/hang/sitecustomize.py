"""On PYTHONPATH of a fleet: its gateways' loops hang for ever at a completion of `hang`."""

import signal
import sys
from typing import Any

if "gateway" in sys.orig_argv:
    from services.gateway.api.intake import Intake

    prepare = Intake.prepare

    async def hangs(intake: Intake, kind: Any, body: bytes, *rest: Any) -> Any:
        while b'"hang"' in body:
            signal.pause()
        return await prepare(intake, kind, body, *rest)

    Intake.prepare = hangs  # type: ignore[assignment]
