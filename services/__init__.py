"""The daemons and commands of Baton, one package each.

No service imports another; `cli.py` alone knows them all. What two services share is in `common`.
"""
