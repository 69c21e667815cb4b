"""Small demos and examples."""
