"""Replays: what was recorded is done again, and compared, without an effect outside."""
