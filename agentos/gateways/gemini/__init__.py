"""Gemini's protocol."""
