"""What is done with each message: one handler for each treatment of `protocol.apis`.

- `table`      the handler of each treatment
- `forward`    request and response are forwarded; control requests are counted, never held
- `data`       common to Produce and Fetch: holds, and the rest of a frame that lapsed
- `produce`    Produce
- `fetch`      Fetch and ShareFetch
- `metadata`   Metadata: the brokers are replaced
- `rewrite`    FindCoordinator, DescribeCluster, DescribeQuorum, DescribeConfigs: addresses replaced or removed
- `hide`       ShareAcknowledge: node endpoints hidden in place
- `mutations`  CreateTopics, DeleteTopics, CreatePartitions: charged or refused as a whole
- `negotiate`  ApiVersions
- `login`      SASL where the proxy logs in itself
"""
