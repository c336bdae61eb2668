"""`baton bench`: load against any OpenAI endpoint, and what its clients measured.

Start with `command.py`. `request_specs.py` defines requests (mixes, traces), `arrivals.py` their
instants, `prompts.py` their text; `driver.py` sends them through `client.py`; `figures.py` and
`result.py` hold the results. `peers`, `crossover`, `plan` and `capacity` import this room.
"""
