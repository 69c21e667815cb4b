"""Permissions, approvals and the audit."""
