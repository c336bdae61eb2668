"""One answer from token ids to text: journal, stop strings, events kept for a client, phases.

This room is sans-IO and knows neither HTTP nor the OpenAI types; `api/`, `requests/` and `http/`
import it. Start with `stream.py`.
"""
