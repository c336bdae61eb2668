"""Requests of clients that nobody here wrote: first and second turns, streams, tools, reasoning
that is sent back, of `openai` for Python and Node, `anthropic`, LiteLLM, langchain-openai,
llama-index, instructor, pydantic-ai, the Vercel AI SDK, Codex CLI and Claude Code.

`recorded/` has one file for each: path and body of what the client sent to a gateway. Words, ids
and the parameters of an agent's own tools are replaced; the names of fields are the client's.
`make test` sends them to a gateway (`tests/integration/test_recorded_clients.py`).
"""

from pathlib import Path

RECORDED = Path(__file__).parent / "recorded"
