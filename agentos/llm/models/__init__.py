"""The models: routes, availability, prices and keys."""
