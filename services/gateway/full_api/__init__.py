"""The full OpenAI surface: vLLM's classes serve what the plain path in `api/` does not.

`http/` and the daemon import this room; `port.py` says what it offers and imports no vLLM. Only
`vllm/` does. Start with `port.py`.
"""
