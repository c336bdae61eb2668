"""Offers a running fleet more load than its capacity.

`offer.py` sends open-loop requests over HTTP, `outcomes.py` computes the figures. The benchmark
`overload` of `make bench` imports this room.
"""
