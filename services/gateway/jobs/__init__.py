"""Jobs: files that clients upload, and batches whose lines run while the fleet has room.

Start reading with `leases.py` (when something of the ledger runs, and what becomes of it), then
`line_work.py` (what that is for lines) and `lines.py` (why none runs twice). `files.py`,
`batches.py` and `lines.py` are the tables of the ledger, `ledger.py` its connection,
`batch_work.py` what happens to a batch before its first line and after its last, and `routes.py`
what a client meets. Only the daemon and `responses` import this room.
"""
