"""Cells: several fleets behind one gateway, each with its own router, standby and workers.

`rendezvous.py` says which cell a tenant belongs to, `cell.py` is one cell with its core of
`requests`, `core.py` moves a request from its cell to one other, and `budget.py` bounds how many
refusals may be tried again so. `docs/sharding.md` has the reasons. Only the daemon and metrics
import this room. Start with `core.py`.
"""
