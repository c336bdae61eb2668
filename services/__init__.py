"""The daemons and commands of Baton, one package each.

No service imports another; `cli.py` alone knows them all, and `worker.py` the two whose cores one
worker has. `fork_server.py` is a process of `baton up` that becomes a worker in each fork. What two
services share is in `common`.
"""
