"""Bounded staging memory, shared inside a host, and the messages that are loaned out of it.

Both shells import it. Start with `pool.py`, then `shared_segment.py`, then `loans.py`.
"""
