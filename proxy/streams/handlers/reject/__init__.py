"""Produce requests that the proxy answers with errors: `action=reject`, and topics whose id is not known.

- `refusals`   which requests are refused, and how they are answered
- `sequences`  batches that were refused, and those that must wait for them

`protocol.produce_partitions` finds the partitions of a request, `protocol.produce_refusals` writes the response.
"""
