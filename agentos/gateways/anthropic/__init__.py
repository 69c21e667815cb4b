"""An endpoint that speaks the Messages protocol of Anthropic."""
