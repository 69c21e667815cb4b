"""Providers of models: vendors' APIs and an offline one."""
