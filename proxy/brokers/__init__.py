"""Brokers: their ports, connections to them, and whether they answer.

nodes       the map between brokers and ports
upstream    opens connections
readiness   probes the bootstrap servers for /readyz
"""
