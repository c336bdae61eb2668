"""The KV layer: moves blocks of KV from a prefill worker to a decode worker, verified.

It takes memory and block ids and knows nothing of vLLM. Start reading at `service.py` (what an
engine's connector calls), then `handoff/protocol.py` (states, events and actions of both sides),
then `sides/`. `layout.py` is an engine's memory, and `canonical.py` the same as workers see it that
lay theirs out otherwise. The order in which rooms may import each other is the
`layers` contract "kv-rooms" in `pyproject.toml`.
"""
