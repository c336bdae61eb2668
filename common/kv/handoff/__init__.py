"""The two sides of a handoff as pure state machines: P's `Sender`, D's `Receiver`, P's ticket
table.

This room is sans-IO; `sides/` and `kv_thread.py` drive it. Start with `protocol.py`.
"""
