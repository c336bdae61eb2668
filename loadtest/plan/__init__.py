"""`baton profile` measures a live fleet's workers; `baton plan` finds the fleet that a load needs.

Start with the two commands. `probe.py` sends probes and `fit.py` makes a profile of them;
`sizing.py` simulates candidate fleets, `search.py` chooses one. Only `loadtest.main` imports this
room.
"""
