"""An agent that watches another one, and a person who watches both."""
