"""UCX: the only room that touches ucxx and libucp.

`peers/` and the shells import it; it imports nothing of ours but settings. Start with `ucx.py`.
"""
