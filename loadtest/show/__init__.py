"""Plots and HTML pages of results.

`plots.py` needs matplotlib (the extra `report`); without it a page has tables only and names the
reason. `bench`, `crossover`, `plan` and `comparison` import this room.
"""
