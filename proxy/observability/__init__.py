"""What is counted and logged. `proxy.admin` shows the counters.

metrics           counts, in plain integers            entities       the counts of each client, bounded in number
tallies           counters and sums over a window      topic_traffic  counters of each client and topic
throttle_tallies  how limits throttled clients          labels         names from the wire as label values
logs              one event per line, text or JSON     build          pure Python, or compiled with mypyc
output            a queue in front of stderr and stdout, so that no print blocks
catalogue/        every metric and every event of the log: what it means, and what to do about it
supervisor        reports to systemd: ready, reloading, alive, stopping
fleet_counts      what a member of a fleet counts
client_times      where the time of a client goes      past         counters as they were in the last minute
client_reports    what clients report of themselves
response_times    how long each broker takes to respond
groups            how often consumer groups rebalance, and who joins them
generated_ids     warns of jobs that share a limit by a client id that their library made up
"""
