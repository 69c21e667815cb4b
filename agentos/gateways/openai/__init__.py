"""The chat completions, responses and embeddings protocols of OpenAI."""
