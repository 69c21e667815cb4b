"""Mailboxes, leases, and what is kept of them."""
