"""Load generators and capacity planning.

`main.py` dispatches the commands (`baton bench`, `baton profile`, `baton plan`); `capacity` answers
what a fleet can do, in virtual time. Nothing but `services.cli` and tests imports this package. The
benchmarks of real daemons are in tests/bench (`make bench`).
"""
