"""The proxy's internal Kafka clients: what they have in common, and those that read the cluster's quotas and disks.

client           how they connect to the brokers: arguments of aiokafka's clients, and what its errors mean
partition        one partition, read without a group and without decompressing it
topic            how the proxy's internal topics are configured and created
log_topic        the internal topics that are used as a log, and what they must be
record_log       the records of one of these, read in order and appended
failures         what may be wrong with it
broker_reader    how the two below ask brokers without aiokafka
log_dirs         asks the brokers how full their disks are
cluster_quotas   the cluster's client quotas as a source of quotas
quotas_log       the topic of quotas as a log
quotas_topic     the same as a source of quotas, which the proxy follows
quota_changes    the same as what Kafka's quota API changes
event_loops      event loops whose connections are made the way sessions make theirs
"""
