"""KV as fp8 on the wire, and the policy that decides when to use it; element types and what lies
between them (`elements.py`).

Off by default and lossy. `packing.py` and `sides/send.py` import it. Start with `policy.py`.
"""
