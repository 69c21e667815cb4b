"""Frames to replies: the core, which knows no concrete call but HELLO, CANCEL and EXIT."""
