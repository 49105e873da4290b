"""OpenTelemetry of sessions: spans and metrics made from the tables, and their export."""
