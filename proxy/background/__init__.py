"""Work beside the event loop.

threads   for work that may wait for something outside the process     retries   the pauses between failed attempts
host      clocks, randomness, sockets and names
"""
