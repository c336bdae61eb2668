"""Links between workers: the control channel, D's cached connections, keepalive.

Both shells (`send.py`, `receive.py`) and the KV thread import it. Start with `channel.py`.
"""
