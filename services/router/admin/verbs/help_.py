"""`help`: the verbs of this router, or one of them in full."""

from __future__ import annotations

from typing import Any

from common.errors import BatonError, Code
from common.net.admin_verbs import VERBS, Arg, Value
from services.router.admin.verb import View


def run(_: View, args: dict[str, Value]) -> list[dict[str, Any]]:
    wanted = args["verb"]
    chosen = [verb for verb in VERBS.values() if not wanted or verb.name == wanted]
    if not chosen:
        sentence = f"no verb {str(wanted)[:64]!r}; there are: {', '.join(VERBS)}"
        raise BatonError(Code.NOT_FOUND, sentence)
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
        "choices": arg.choices,
    }
