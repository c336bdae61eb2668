"""What two or more services share. It never imports `services` or `loadtest`.

Start with `messages/` (what daemons send to each other), `errors.py` (the one error tree) and
`config/` (the one fleet file). `STYLE 8` and the like, in comments and linter messages, are the
numbered rules of `docs/contributing.md`.
"""
