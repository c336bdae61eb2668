"""Fixtures of the gateway's unit tests."""

from tests.rigs.light_text import light, model_folder

__all__ = ["light", "model_folder"]
