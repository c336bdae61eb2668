"""`reload`: this router reads its fleet file again, as it does on SIGHUP."""

from __future__ import annotations

from typing import Any

from services.router.admin.verb import Value, Verb, View


def run(view: View, _: dict[str, Value]) -> dict[str, Any]:
    """Raises ConfigError if the file cannot be used; then nothing has changed."""
    reading = view.reload()
    return {
        "applied": list(reading.applied),
        "needs_restart": list(reading.needs_restart),
        "sentence": reading.sentence,
    }


VERB = Verb(
    "reload",
    "read the fleet file again; a change is in force at once, or said to wait for a restart",
    (),
    run,
)
