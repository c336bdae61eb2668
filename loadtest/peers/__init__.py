"""`baton bench peers`: several endpoints under one load and one fault, side by side.

Whoever speaks OpenAI's API can stand in it: a plain `vllm serve`, a NIXL pair behind its proxy,
another router. They are started by whoever has them; here they are only asked, and scored by what
their clients saw.
"""
