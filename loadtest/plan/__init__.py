"""`baton profile` measures a live fleet's workers; `baton plan` says what fleet a load needs.

`probe` asks, `fit` makes a profile of the answers; `sizing` plays candidate fleets in virtual time,
`verdict` chooses, `formula` prints sums that need no simulation.
"""
