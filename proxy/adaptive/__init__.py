"""Limits whose rates follow what the proxy measures; `quotas.adaptive` has the rules.

disk_guard        asks brokers how full their disks are, and slows or stops producers
yielding_groups   resource groups that use what the clients leave that they yield to
"""
