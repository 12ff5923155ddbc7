"""Alerts, and a dashboard for Grafana: rules.yaml, dashboard.py."""
