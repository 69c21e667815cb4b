"""The model, as agents and programs of other vendors reach it."""
