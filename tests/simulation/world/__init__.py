"""Every production core at once, among modelled sockets, engines and faults, in virtual time.

`World(seed).run()` builds a fleet, plays some seconds of load and faults, heals everything, lets it
settle, and judges. Router, gateways, prefill and decode workers are the production cores; their
shells, the network (`network`), the engines (`engines`) and the clients are models. All that is
random comes from the seed. What is wrong is raised as `PromiseBrokenError`.
"""
