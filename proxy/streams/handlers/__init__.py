"""What is done with each message: one handler for each treatment of `protocol.apis`.

- `table`      the handler of each treatment
- `forward`    request and response are forwarded; control requests are counted, never held
- `produce`    Produce
- `produce_content`  what a Produce request contains: topics, records, producer ids
- `reject/`    Produce requests that are answered with errors
- `fetch`      Fetch and ShareFetch
- `groups`     requests of consumer groups: counted
- `rewrite`    Metadata, FindCoordinator, DescribeCluster, DescribeQuorum, DescribeConfigs, ShareAcknowledge: addresses
- `mutations`  CreateTopics, DeleteTopics, CreatePartitions: charged or refused as a whole
- `negotiate`  ApiVersions
- `clients`    what is known of clients by the software that they name there
- `authenticate`  SASL that passes through: the client's user
- `telemetry`  metrics of clients
- `login`      SASL where the proxy logs in itself
"""
