"""A pool of workers: spawned agents that take jobs from their mailboxes and send back results."""
