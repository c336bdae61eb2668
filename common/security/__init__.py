"""Keys: of API clients (`api_keys.py`), and of hosts that authenticate each other by CURVE
(`open.py`).

Every daemon imports it, for its TCP sockets or for API keys. Start with `open.py` or `api_keys.py`.
"""
