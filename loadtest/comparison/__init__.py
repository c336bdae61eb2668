"""`baton bench show FILE...`: results of earlier loads side by side, ours and other tools'.

Start with `command.py`. `load_summary.py` holds what all tools report; `baton.py`, `vllm.py` and
`aiperf.py` convert their files to it. Only `loadtest.main` imports this room.
"""
