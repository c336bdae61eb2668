"""The rows of the router's tables: attempts, workers, gateways, their states, counters and history.

Every room above may import them; they import only placement's plain values. Start with `states.py`.
"""
