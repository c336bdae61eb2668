"""The router's one queue: bounded, with strict classes that are fair between tenants.

It knows attempts and nothing of workers. `tables.py` holds it and the rules use it; start with
`waiting_queue.py`.
"""
