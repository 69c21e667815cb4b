"""What is done for callers: no caller, no request, only values."""
