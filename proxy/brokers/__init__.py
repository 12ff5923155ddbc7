"""Brokers: their ports, connections to them, and whether they answer.

nodes           the map between brokers and ports
places          which broker has which port
upstream        opens connections: resolves names, tries their addresses, and keeps the first that works
connect         opens connections for the proxy's own requests: whether a broker answers, the topics of unknown ids
sasl_exchange   the messages of the proxy's own login
health          logs brokers that fail
readiness       probes the bootstrap servers for /readyz
topics          names, ids and partitions of topics, from Metadata responses
"""
