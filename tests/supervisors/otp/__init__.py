"""OTP's traces, and a model of OTP."""
