"""How many of a model's workers should prefill and how many decode: the controller of roles.

Sans-IO and without a look at the rest of the router: figures go in, a verdict with its reasons
comes out. `rules/measure.py` feeds it and carries its verdicts out, if it may. Start with
`controller.py`.
"""
