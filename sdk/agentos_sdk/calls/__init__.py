"""The types of every call: its request and its reply."""
