"""DataFrame in, DataFrame out: pure, of built-in functions, no Python UDF, no action, no collect.

parsing          Kafka values to typed records, and why a value is none
deltas           records to samples (their only reader) to deltas by quarter hour: losses, repetition, restarts, order
topics           the total of a client, and its split by topic
hourly           deltas to usage_hourly and throttling_hourly
chargeback       quantities to decimal costs, costs to cents that add up
focus            chargeback rows to FOCUS 1.2 columns
members          which clients share which limit
rates            samples to rates between two records, by quarter hour
neighbours       max-min fair shares: who delayed whom on a shared limit, and the cost of waiting
sidecars         runs of proxies: gaps, lag, how they ended; holes of the topic
recommendations  the need of each entity, right-censored demand, proposed quotas
sums             sums that no input can make fail
bypass           the brokers' counts minus what the sidecars saw
"""
