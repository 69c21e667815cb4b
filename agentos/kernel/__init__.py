"""The kernel's core: turns request frames into replies. It implements only HELLO, CANCEL and EXIT itself."""
