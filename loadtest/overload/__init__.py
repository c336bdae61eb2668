"""Offers a running fleet more than it can do, and says what became of it.

`offer` sends open-loop requests over HTTP, `judge` sums up. `make bench ARGS=overload` does both at
multiples of a fleet's capacity.
"""
