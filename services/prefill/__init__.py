"""The prefill worker: it computes the KV of prompts and hands it to decode workers.

`core.py` decides and is sans-IO. Only `services/worker.py` imports it and joins it to the shell in
`common.worker`. Start with `core.py`.
"""
