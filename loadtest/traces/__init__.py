"""Recorded load: rows of a trace file, streamed, and what was wrong with the others.

`reader.read` takes Mooncake's JSONL and Azure's CSV. A row says when, how long the prompt, how long
the answer; Mooncake's also which blocks of the prompt are whose.
"""
