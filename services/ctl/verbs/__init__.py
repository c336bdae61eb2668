"""The verbs of `baton ctl`, one file each, declared as `VERB`. Only `registry.py` imports them."""
