"""The shells of both sides of a handoff, on the KV thread: P sends, D fetches.

`kv_thread.py` and `offers/` import it. Start with `send.py` and `fetch.py`, then `receive.py`.
"""
