"""Brokers: their ports, connections to them, and whether they answer.

nodes       the map between brokers and ports
places      which broker has which port
upstream    opens connections: names, their addresses, and the one that works
connect     opens them for the proxy's own requests: whether a broker answers, the topics of unknown ids
login       the proxy's own login: its messages
health      what is logged of brokers that fail
response_times  how long each broker takes to respond
readiness   probes the bootstrap servers for /readyz
topics      names, ids and partitions of topics, from Metadata responses
"""
