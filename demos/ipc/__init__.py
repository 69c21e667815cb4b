"""How agents talk: names, mailboxes, one to one and one to all."""
