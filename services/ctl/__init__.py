"""`baton ctl`: a client of the router's admin socket. Only `services/cli.py` imports it.

Start at `main.py`. Verbs are declared in `common/net/admin_verbs.py`. `verbs/` has the text that
people are shown of a verb's result; a verb without one is shown as a table of what its rows have.
"""
