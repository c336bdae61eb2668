"""The channel between a worker's daemon and the KV threads of its engine, one for every rank.

The worker's daemon and the KV thread import it. Start with `side_channel.py`.
"""
