"""`baton ctl`: a client of the router's admin socket. Only `services/cli.py` imports it.

Start at `main.py`. `verbs/` holds one file per verb, each with one declaration (`verb.py`): its
help, its arguments and its text for people. A new verb needs its file and a line in `registry.py`.
"""
