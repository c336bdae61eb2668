"""Engines behind one port: vLLM, and a simulated engine with modelled time.

Workers import `port.py` and `open.py`, and nothing else of this room. Start with `port.py`.
"""
