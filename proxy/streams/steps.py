"""What a stream asks the pump to do next.

``next_step(pos, end, now_ns)`` returns one int, because this is the hot path (an int costs 56 ns a call, a named tuple
463):

- a position after ``pos``: forward the bytes up to it, and ask again if there are more
- one of the codes below, whose operands are attributes of the stream

The work of one step is bounded, so the pump can stop between two steps.
"""

from typing import Final

#: More bytes are needed: keep those that start at ``pos``, and read at most ``stream.want`` more.
NEED: Final = -1
#: A limit holds the frame at ``pos`` (`held` of the stream): keep the bytes.
HOLD: Final = -2
#: Too many requests wait for responses: keep the bytes until some have arrived.
FULL: Final = -3
#: Send ``stream.output`` instead of the bytes from ``pos`` to ``stream.resume_at``. Either may be empty.
REPLACE: Final = -4
#: This step has done its share of work but found nothing to forward: ask again.
YIELD: Final = -5
#: A frame must be collected, but there is no memory for it: keep the bytes until `MemoryPool.grant` allocates some.
WAIT: Final = -6
#: The response at ``pos`` is delayed (``stream.delay``): keep the bytes.
DELAY_RESPONSE: Final = -7

#: What a handler returns for a request that passes.
PASS: Final = 0

#: The most topics, partitions, batches and tagged fields that one step reads.
PIECES_PER_STEP: Final = 500
