"""Grammars, schemas and regexes, compiled in a process of their own with limits of time and memory.

The daemon holds the pool; `compiler_process.py` is the other process. Start with `pool.py`.
"""
