"""The plain OpenAI path: it checks bodies by our own types, renders prompts, and writes answers.

It knows no HTTP server and no vLLM; `http/`, `requests/` and `full_api/` import it. Start with
`intake.py`, then `sse.py`.
"""
