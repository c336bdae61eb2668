"""`docs/clients.md`: what each client made of Baton's answers, beside vLLM's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.clients.scenarios import TURNS, Client

#: The package whose version a client's row names.
PACKAGES = {
    "openai_python": "openai",
    "openai_responses": "openai",
    "openai_node": "npm:openai",
    "anthropic": "anthropic",
    "litellm": "litellm",
    "langchain_openai": "langchain-openai",
    "llama_index": "llama-index-llms-openai-like",
    "instructor": "instructor",
    "pydantic_ai": "pydantic-ai-slim",
    "vercel": "npm:ai",
    "codex": "npm:@openai/codex",
    "claude_code": "npm:@anthropic-ai/claude-code",
}
EMPTY = "both empty"
HEAD = """\
# Clients

`make clients` runs each of these clients, in the pinned version, against Baton and against vLLM's
own server with the same model, and writes this page. "same" means that the client made the same of
the answers at both: the same text, or the same call of a tool; "same error", that it failed alike
at both; "both empty", that it got nothing from either, which shows nothing. A dash: the client has
no such turn, or the harness does not ask for it. The shapes of the requests are recorded in
`tests/clients/recorded`, and `make test` sends them to a gateway.
"""


@dataclass(frozen=True)
class Result:
    client: Client
    #: By turn, what the client made of Baton's answers.
    ours: dict[str, Any]
    #: The same of vLLM's.
    theirs: dict[str, Any]

    @property
    def is_same(self) -> bool:
        """Whether no turn differs, and none is empty that is not expected to be."""
        return all(
            self.cell(turn).startswith("same")
            or (self.cell(turn) == EMPTY and turn in self.client.empty_turns)
            for turn in self.client.turns
        )

    def cell(self, turn: str) -> str:
        if turn not in self.client.turns:
            return "-"
        ours, theirs = self.ours.get(turn), self.theirs.get(turn)
        if ours is None or ours != theirs:
            return "different"
        if not (any(ours.values()) if isinstance(ours, dict) else ours):
            return EMPTY
        return "same error" if isinstance(ours, dict) and ours.get("error") else "same"


def table(results: list[Result], versions: dict[str, str]) -> str:
    head = ["client", "version", *TURNS]
    rows = [head, ["---"] * len(head)]
    for result in results:
        key = result.client.key
        cells = [result.cell(turn) for turn in TURNS]
        rows.append([result.client.name, versions[PACKAGES[key]], *cells])
    return "\n".join([HEAD, *("| " + " | ".join(row) + " |" for row in rows), ""])


def rows_of(page: str) -> list[list[str]]:
    """The cells of a page's rows, without the head."""
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
