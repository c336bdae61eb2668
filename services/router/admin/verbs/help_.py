"""`help`: the verbs of this router, or one of them in full."""

from __future__ import annotations

from typing import Any

from common.errors import BatonError, Code
from services.router.admin.verb import Arg, Value, Verb, View


def run(view: View, args: dict[str, Value]) -> list[dict[str, Any]]:
    wanted = args["verb"]
    chosen = [verb for verb in view.verbs if not wanted or verb.name == wanted]
    if not chosen:
        names = ", ".join(verb.name for verb in view.verbs)
        raise BatonError(Code.NOT_FOUND, f"no verb {str(wanted)[:64]!r}; there are: {names}")
    return [
        {
            "verb": verb.name,
            "usage": verb.usage(),
            "help": verb.help,
            "args": [_arg(arg) for arg in verb.args],
        }
        for verb in chosen
    ]


def _arg(arg: Arg) -> dict[str, Any]:
    return {
        "name": arg.name,
        "help": arg.help,
        "required": arg.default is None,
        "default": arg.default,
        "choices": [choice for choice in arg.choices if choice],
    }


VERB = Verb("help", "the verbs of this router", (Arg("verb", "only this verb", default=""),), run)
