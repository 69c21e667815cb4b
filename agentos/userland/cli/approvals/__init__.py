"""Commands about approvals: the list, the desk, and the program that is notified."""
