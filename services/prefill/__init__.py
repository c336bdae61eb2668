"""The prefill worker: it computes the KV of prompts and hands it to decode workers.

`core.py` decides and is sans-IO; `daemon.py` joins it to the shell in `common.worker`. Only the
command line imports it. Start with `core.py`.
"""
