"""Export to monitoring programs: metrics for Prometheus, traces for OpenTelemetry."""
