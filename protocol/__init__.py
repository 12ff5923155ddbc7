"""Kafka's wire protocol, as far as the proxy needs it: bytes in, facts out.

No sockets, no clock, no asyncio. It needs only the standard library, `kio` (a codec generated from Kafka's schemas) and
asn1crypto.

    errors            errors in bytes: the only exceptions that functions of this package raise
    apis              the table: the treatment of each API, its versions, the place of its throttle time
    proxy_header      the header of the PROXY protocol, before Kafka's first byte
    request_header    the first bytes of a request, parsed on the hot path; lengths of frames
    throttle_time     throttle_time_ms raised where it has a fixed place
    api_versions      ApiVersions: ranges cut to the table's maxima, the client's software
    quota_api         DescribeClientQuotas and AlterClientQuotas, answered by the proxy
    client_quotas     DescribeClientQuotas: the cluster's own quotas of clients, asked for by the proxy
    log_dirs          DescribeLogDirs: the disks of brokers, asked for by the proxy
    telemetry         metrics of clients (KIP-714): requests, the proxy's own responses, a reader of OTLP
    addresses         which address a client receives instead of a broker's: an interface
    rewriting         which walk rewrites the response of which API
    layouts           layouts of messages, from kio's schemas
    rewriting_walk    the base of these walks: they consume a message and write what is read or sent in its place
    broker_addresses  Metadata, DescribeCluster, FindCoordinator, DescribeQuorum: addresses replaced, or removed
    describe_configs  DescribeConfigs responses: addresses hidden; requests: do they name a broker?
    metadata_topics   Metadata: the topics, which follow: names, ids, numbers of partitions
    topic_metadata_request  Metadata: a request for topics known only by id
    produce           Produce responses: throttle time raised, node endpoints hidden, errors counted by topic
    produce_walk      Produce requests: bytes, messages and producer ids of each topic
    produce_partitions  the partitions of Produce requests, found while these stream by
    produce_refusals  the responses to refused Produce requests
    fetch             Fetch requests: budget, brokers refused; responses: node endpoints hidden, bytes of each topic
    fetch_lag         Fetch responses: how far a consumer is behind
    group_requests    requests of consumer groups: generations, and who joins
    records_walk      the base of walks over responses that count record bytes
    record_batch      the header of a record batch: messages, producer id
    stored_records    the values of records in a partition that the proxy reads itself
    share             ShareFetch and ShareAcknowledge responses: node endpoints hidden, record bytes counted
    topic_mutations   CreateTopics, DeleteTopics, CreatePartitions: partitions counted, the response that refuses all
    sasl              SASL: which name a client claims, and whether the broker accepted it
    principal_rules   the name of a certificate, and Kafka's rules that make a user of it
    topics            types of topics: by name or by id
    node_endpoints    how broker addresses at the end of data responses are hidden without a change of length
    walk              the base of the walks, which process a frame while its bytes arrive
    messages          kio, after a check of every length: kio aborts the process on impossible counts
    wire              varints, strings and tag buffers, bounded

A *response* starts at its correlation id, after the four bytes of its length. Only bytes that a function needs are
read, and every length is checked against the end of its frame before it is used.
"""
