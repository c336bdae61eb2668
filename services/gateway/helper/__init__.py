"""Work that one request may make expensive, in processes of their own with limits.

The daemon holds the pool (`pool.py`, and `grammars.py` above it); `process.py` is the other side,
`work.py` what it does, and `jobs.py` what both say to each other. Start with `pool.py`.
"""
