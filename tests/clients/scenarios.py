"""The clients and what each is asked to do; the rows and columns of `docs/clients.md`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RECORDED = HERE / "recorded"
TABLE = ROOT / "docs" / "clients.md"
#: In the order of the table's columns.
TURNS = ("first turn", "second turn", "stream", "tool call", "tool result", "reasoning sent back")


@dataclass(frozen=True)
class Client:
    name: str
    #: Its file in `recorded/`, and the name by which its program knows it.
    key: str
    #: `python`, `node`, `codex` or `claude`: how it is run.
    runtime: str
    #: Those of `TURNS` that it has.
    turns: tuple[str, ...] = TURNS
    #: Those whose answer is expected to be empty.
    empty_turns: tuple[str, ...] = ()


_PLAIN = TURNS[:-1]
CLIENTS = (
    Client("openai (Python), chat", "openai_python", "python"),
    Client("openai (Python), responses", "openai_responses", "python", _PLAIN),
    Client("openai (Node)", "openai_node", "node", _PLAIN),
    Client("anthropic", "anthropic", "python"),
    Client("LiteLLM", "litellm", "python"),
    Client("langchain-openai", "langchain_openai", "python", _PLAIN),
    Client("llama-index", "llama_index", "python", TURNS[:3]),
    Client("instructor", "instructor", "python", ("tool call",)),
    Client("pydantic-ai", "pydantic_ai", "python", _PLAIN),
    Client("Vercel AI SDK", "vercel", "node", _PLAIN),
    Client("Codex CLI", "codex", "codex", ("first turn", "second turn")),
    Client("Claude Code", "claude_code", "claude", ("first turn", "second turn")),
)
