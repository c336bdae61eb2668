"""Recorded load: rows of a trace file, streamed, and what was wrong with the others.

`reader.read` takes Mooncake's JSONL and Azure's CSV. A row has an instant and the lengths of prompt
and answer; Mooncake's also has ids of the prompt's blocks. `bench` and `capacity` import this room.
"""
