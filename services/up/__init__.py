"""`baton up`: a whole fleet on one machine as supervised children; `doctor/` checks a host.

Start with `main.py`, then `supervisor.py`.
"""
