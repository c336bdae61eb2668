"""Tiny random checkpoints of the model families that people run, each judged by a plain vLLM.

`families` says what they are, `checkpoints` makes them, `judge` is the plain engine, `trial` tries
one family on a pair of engines with `faults`, and `page` writes docs/models.md. `python -m
tests.zoo` runs them all. `vision` makes a checkpoint for the tests of images.
"""
