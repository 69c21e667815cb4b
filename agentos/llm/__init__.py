"""LLM requests: queue, budgets, retries, circuit breaker and providers."""
