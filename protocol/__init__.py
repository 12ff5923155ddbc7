"""Kafka's wire protocol, as far as the proxy needs it: bytes in, facts out.

No sockets, no clock, no asyncio; the standard library and `kio` (Kafka's own schemas as a codec) are all it stands on.

    errors            what can be wrong with bytes: the only exceptions that come out of here
    apis              the table: how each API is treated, in which versions
    request_header    what stands in the first bytes of a request, read on the hot path
    api_versions      ApiVersions: ranges cut to the table, the client's software
    addresses         the question that every rewrite asks: what may the client see of a broker's address?
    metadata          Metadata: the brokers, which come first, replaced; the topics streamed untouched
    metadata_topics   Metadata: the topics, which follow: names, ids, numbers of partitions
    topic_metadata_request  Metadata: the question for topics known by id only
    whole_responses   small responses held whole: FindCoordinator, DescribeCluster, DescribeConfigs, DescribeQuorum
    produce           Produce responses: throttle time, node endpoints hidden
    produce_errors    Produce responses: which topics the broker refused
    produce_walk      Produce requests: bytes, messages and producer ids of each topic while bytes stream by
    fetch             Fetch requests and responses: budget, throttle time, node endpoints hidden while bytes stream by
    share             ShareFetch and ShareAcknowledge responses: node endpoints hidden while bytes stream by
    topic_mutations   CreateTopics, DeleteTopics, CreatePartitions: partitions counted, topics refused
    topics            how topics are spoken of: by name or by id
    node_endpoints    how broker addresses at the end of data responses are hidden without a change of length
    walk              what the streaming walks have in common
    messages          kio, behind a check of every length: it aborts the process on counts that cannot be
    wire              varints, strings and tag buffers, bounded

A *response* starts at its correlation id, after the four bytes of its length. Bytes that nobody asked about are never
looked at, and every length is checked against the end of its frame before it is used.
"""
