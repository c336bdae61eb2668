"""The KV connector that vLLM loads: its scheduler half and its worker half, on top of `common.kv`.

It runs inside vLLM's engine process, and vLLM finds it by its module path. Start with
`connector.py`. `memory.py` and `canonical.py` say what vLLM's KV cache holds where.
"""
