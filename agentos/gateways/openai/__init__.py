"""An endpoint that speaks the chat completions protocol of OpenAI."""
