"""Quotas that are kept in a topic: records in, the entries that apply out; and Kafka's quota API over them.

From the outside in; each module imports only those below it:

- `kafka_api`  DescribeClientQuotas and AlterClientQuotas: filters, changes, Kafka's errors
- `changes`    what two sets of quotas differ in, and what a change of one limit makes of an entry
- `table`      the latest valid record of each entity, bounded
- `record`     one record as bytes
"""
