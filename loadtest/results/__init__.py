"""`baton bench show FILE...`: results of earlier loads side by side, ours and other tools'.

`seen` is what all tools tell; `baton`, `vllm` and `aiperf` make it of their files; `reader` knows
which is which.
"""
