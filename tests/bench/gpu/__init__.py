"""`make gpu`: what the KV handoff does on a GPU of this host, in minutes, without vLLM.

`__main__.py` runs the parts one after the other, `pair.py` each part in processes of its own,
which share one card. `memory.py` fills the paged KV and compares it, `handoffs.py` moves it,
`report.py` keeps and prints what came of it; the other modules are the parts. Nothing here may
import vLLM, nor anything else that a bare host with torch lacks.
"""
