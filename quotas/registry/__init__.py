"""What is configured, and what is in use.

- `registry`     the entry point: resolves limits, changes them while running, removes idle ones
- `configured`   all entries, by entity
- `networks`     the networks among them that an address is in
- `override`     the compact form of one entry
- `precedence`   Kafka's eight levels of user and client id
- `client_table` the clients in use
- `limit_store`  the buckets in use
- `topic_table`  the topics in use
- `idle`         which of them to check for idleness
"""
