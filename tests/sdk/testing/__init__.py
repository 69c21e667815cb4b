"""agentos_sdk.testing."""
