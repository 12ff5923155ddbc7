"""DataFrame in, DataFrame out: pure, of built-in functions, no Python UDF, no action, no collect.

parsing          Kafka values to typed records, and why a value is none
deltas           records to samples to deltas by quarter hour: losses, repetition, restarts, order
hourly           deltas to usage_hourly and throttling_hourly
chargeback       quantities to decimal costs, costs to cents that add up
focus            chargeback rows to FOCUS 1.2 columns
neighbours       shared limits: shares, victims, the cost of waiting
recommendations  percentiles, right-censored demand, proposed quotas
bypass           the brokers' counts minus what the sidecars saw
"""
