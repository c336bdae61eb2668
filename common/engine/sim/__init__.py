"""The simulated engine: modelled time, and real bytes through the real KV layer. It never infers.

`engine.py` implements the engine port, `scheduler.py` decides, and `model.py` makes KV content and
tokens. Only `open.py` of the room above imports it. Start with `scheduler.py`.
"""
