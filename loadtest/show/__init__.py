"""Figures as pictures and pages.

`plots` needs matplotlib (the extra `report`); without it a page has its tables and says so.
"""
