"""Placement policies, one pure function per file; `registry.py` lists them by name.

The registry imports the policies; `place.py` is given one.  Start with `least_loaded.py`, the
shortest.
"""
