"""Produce requests that the proxy answers with errors, because of `action=reject` or of topic ids that are not known.

- `refusals`   which requests are refused, and how they are answered
- `sequences`  batches that were refused, and batches that must wait for these

`protocol.produce_partitions` finds the partitions of a request, `protocol.produce_refusals` writes the response.
"""
