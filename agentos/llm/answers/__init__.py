"""What goes into a question and comes out of an answer, whatever the provider."""
