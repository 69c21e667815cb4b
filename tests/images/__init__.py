"""Images: their import and their store."""
