"""Commands about the audit."""
