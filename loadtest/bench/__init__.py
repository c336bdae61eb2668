"""`baton bench`: load against any OpenAI endpoint, and what its clients saw.

`asks` says what is asked (mixes, traces), `arrivals` when; `prompts` makes the text; `driver` sends
open or closed loop through `client`; `figures` sums up; `result` is what is written; `command` is
the command line.
"""
