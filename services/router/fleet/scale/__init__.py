"""How many workers a model should have, and the order for more or fewer: the controller of numbers.

Sans-IO and without a look at the rest of the router, as `fleet/balance` is. `need.py` compares what
is asked for with what the workers can serve; `controller.py` keeps the one order that is open.
`rules/scale.py` feeds both and carries out what they say.
"""
