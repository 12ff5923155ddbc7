"""What is counted and logged. `proxy.admin` shows the counters.

metrics           counts, in plain integers            entities       those of each client, bounded in number
tallies           counters and sums over a window      topic_traffic  counters of each client and topic
throttle_tallies  what limits did to clients           labels         names from the wire as label values
logs              one event per line, text or JSON     build          pure Python, or compiled with mypyc
output            the queue in front of stderr and stdout, so that no print blocks
supervisor        reports to systemd: ready, reloading, alive, stopping
fleet             what a member of a fleet counts
wait_clock        where the time of a connection goes: the states
client_times      the same of a client                 past         counters as they were in the last minute
client_reports    what clients report of themselves
generated_ids     warns of jobs that share a limit by a client id that their library made up
"""
