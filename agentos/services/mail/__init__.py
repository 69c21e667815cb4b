"""Messages between agents: mailboxes in memory, and those that are kept in the database."""
