"""What tests of several kinds share: played peers, played engines, fleets, loads, messages.

A rig imports daemons and cores, no test module. A rig for one folder alone stays in that folder.
"""
