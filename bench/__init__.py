"""Benchmarks: what the proxy costs, how fast it answers, how evenly it holds a client, what it does under a storm.

`python -m bench` (`make bench`) runs them; README.md describes what each one measures and how. The map:

    against_haproxy   CPU and latency against HAProxy in TCP mode, and without any peer
    connections       new connections per second, memory of an idle one
    evenness          5 MB/s, second by second, for three client libraries at a real broker
    metadata_storm    200 clients ask for the Metadata of 100,000 partitions while one produces
    quota_decision    the quota engine alone: CPU of a decision, bytes of an override and of a bucket

    frames → streams → null_broker, load     the two ends: bytes built beforehand, one pump, a broker and a load
    peers → processes                        what stands between them: started, pinned, measured, ended
    flooding_clients                         real producers that want more than they may have
    options, report                          how a run was asked for; figures, tables, JSON
"""
