"""What can be seen from outside.

metrics     counts, in plain integers                 exposition  the same as Prometheus families and text
tallies     the counters beneath them                 admin       /metrics /healthz /readyz /throttles
logs        one event per line, text or JSON
"""
