"""Stored responses: `store`, `previous_response_id` and `background` of `/v1/responses`.

Start reading with `turns.py` (what happens to a request before it is answered, and to its answer),
then `background.py` (when one runs that nobody waits for). `records.py` is their table in the
ledger of jobs, `conversation.py` what is read of and written into bodies, and `routes.py` what a
client meets besides. For streams of the background, `events.py` is the table of their events,
`event_writer.py` fills it, and `followers.py` reads it. Only the daemon imports this room.
"""
