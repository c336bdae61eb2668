"""`baton bench peers`: several endpoints under one load and one fault, side by side.

An endpoint is any server of OpenAI's API: a plain `vllm serve`, a NIXL pair behind its proxy,
another router. It is started elsewhere; here it only receives load and is scored by its clients'
measurements. Start with `command.py`. Only `loadtest.main` imports this room.
"""
