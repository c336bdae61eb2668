"""Links between workers: the control channel, D's cached connections, keepalive.

Both shells (`sides/`) and the KV thread import it. Start with `channel.py`.
"""
