"""The playground: a real Kafka cluster on one machine with nothing but Python and Java, and the tap that measures it.

    artifacts  which jars, pinned by SHA-256       cluster   one or three KRaft brokers, started, bounced, cleaned up
    ivy        how they are fetched, with progress  node      one broker: its files, its process, its log
    java       finds a Java that is new enough      leash     keeps a broker from outliving whoever started it
    probe      is the broker ready? asked by wire   settings  server.properties for a single machine
    tools      Kafka's command line tools

    tap        a relay in front of a broker         relay     its process
               that notes complete data frames      frames    its framing, sans-IO
    broker_quota  the broker's own quotas of a client id, by wire
    evenness   the contract "±2 % in every second" as arithmetic over what the tap noted
    granted    what members of a fleet might use together, from their logs
    bars       bytes in each second as a panel of a picture

`python -m deploy.local` starts a cluster in the foreground. Tests use the same code as fixtures (tests/conftest.py).
Every error here is a `PlaygroundError`; its text contains what happened and what to do.
"""
