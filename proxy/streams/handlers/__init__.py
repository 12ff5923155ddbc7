"""What is done with each message: one handler for each treatment of `protocol.apis`.

- `table`      the handler of each treatment
- `forward`    requests and responses that are forwarded; control requests are counted, but never held
- `produce`    Produce
- `produce_content`  what a Produce request contains: topics, records, producer ids
- `reject/`    Produce requests that are answered with errors
- `fetch`      Fetch and ShareFetch
- `groups`     requests of consumer groups, which are counted
- `end_transaction`  EndTxn, which is read while the disk guard lets open transactions finish
- `rewrite`    the addresses in Metadata, FindCoordinator, DescribeCluster, DescribeQuorum, DescribeConfigs and
               ShareAcknowledge
- `mutations`  CreateTopics, DeleteTopics, CreatePartitions: charged or refused as a whole
- `negotiate`  ApiVersions
- `authenticate`  SASL that passes through, which proves the client's user
- `client_quotas`  DescribeClientQuotas and AlterClientQuotas, which the proxy answers with `--quotas-topic`
- `telemetry`  metrics that clients push
- `login`      SASL when the proxy itself logs in
"""
