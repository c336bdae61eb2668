"""`reload`: this router reads its fleet file again, as it does on SIGHUP."""

from __future__ import annotations

from typing import Any

from common.net.admin_verbs import Value
from services.router.admin.verb import View


def run(view: View, _: dict[str, Value]) -> dict[str, Any]:
    """Raises ConfigError if the file cannot be used; then nothing has changed."""
    reading = view.reload()
    return {
        "applied": list(reading.applied),
        "needs_restart": list(reading.needs_restart),
        "sentence": reading.sentence,
    }
