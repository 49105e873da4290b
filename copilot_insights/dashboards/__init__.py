"""Grafana dashboards, and what makes them."""
