"""OpenTelemetry made from logs."""
