"""Frames as an enemy would send them: `frames` against decoders, `router` against a core."""
