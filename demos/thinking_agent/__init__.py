"""One agent that thinks with a model: it streams its answers, uses a tool, and shows the model a picture."""
