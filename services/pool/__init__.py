"""The pool: it stores KV that workers offer, and gives it to any worker that asks, without an
engine.

`holdings.py` keeps the names of what is stored, sans-IO; `store.py` is the memory and the KV plane;
`daemon.py` joins them to the routers. Only the command line imports it. Start with `daemon.py`.
"""
