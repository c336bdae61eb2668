"""Speculative decoding on decode workers: a drafter proposes tokens, and one step of the engine
checks several of them.

`config_check.py` refuses what cannot work when the fleet file is read. `arguments.py` makes vLLM's
configuration of `[speculation]`. `draft_layers.py` says what is handed over of a drafter.
`scheduler.py` and `worker.py` run inside vLLM: which requests get drafts, and how those without are
sampled. Only `common.config` and `common.engine` import this. Start reading at `arguments.py`.
"""
