"""Benchmarks: what the proxy costs, how fast it answers, how evenly it holds a client.

`python -m bench` (`make bench`) runs them; README.md describes what each one measures and how. The map:

    against_haproxy   CPU and latency with one limit and with all limits, against HAProxy and any other peer
    enforcement       each throttle mode and the broker's own quota, side by side, for three client libraries
    connections       new connections per second, memory of an idle one
    evenness          5 MB/s, second by second, for three client libraries at a real broker
    fleet_policy      one quota for a fleet, in virtual time: unserved, over, records; CPU of a record and of a plan
    fleet_size        what up to 1,000 members cost at rest: CPU of one, bytes that all read
    quota_decision    the quota engine alone: CPU of a decision, bytes of an override and of a bucket

    frames → shapes → streams                the cycles of frames that both ends send
    streams → null_broker, load              the two ends: a broker and a load
    peers → processes                        what is between them: started, pinned, measured, ended
    profile                                  a flame graph of the proxy under one of the loads
    real_broker                              a broker with a tap in front of it, and one flooding client
    flooding_clients, greedy_consumers       real clients that want more than they may have
    options, report                          how a run was asked for; figures, tables, JSON
"""
