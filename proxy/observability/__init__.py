"""Metrics, health and logs.

metrics     counts, in plain integers                 exposition  the same as Prometheus families and text
entities    those of each client, bounded in number   labels      names from the wire as label values
tallies     counters and sums over a window
admin       /metrics /healthz /readyz /throttles      logs        one event per line, text or JSON
throttle_tallies  what limits did to clients           topic_traffic  counters of each client and topic
generated_ids  warns of jobs that share a limit by a client id that their library made up
build         pure Python, or compiled with mypyc     healthcheck  asks a running proxy from another process
supervisor    reports to systemd: ready, reloading, alive, stopping
http_server   HTTP in the event loop by h11, all of it bounded
"""
