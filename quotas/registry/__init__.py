"""What is configured, and what is in use.

- `registry`     the front: resolves limits, changes them while running, forgets idle ones
- `configured`   all entries, by entity
- `override`     how one of a million is kept
- `precedence`   Kafka's eight levels of user and client id
- `client_table` the clients in use
- `limit_store`  the buckets in use
- `topic_table`  the topics in use
- `idle`         which ones to look at
"""
