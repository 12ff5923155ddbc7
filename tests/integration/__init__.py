"""Real brokers, real clients, and the proxy as a process between them.

proxy_process     the command itself: started, listened to, drained; exit code 0 or the test fails
scanned_proxy     the same behind a relay that searches every byte towards clients for a broker's address
librdkafka        producing and reading with confluent-kafka, for many tests
java_tools        Kafka's console and perf tools, run to their end
records           what is produced
wire              requests made by hand, for what no client sends when it is wanted
flood             a producer in this process that wants more than it may have
topics            topics that are made, changed and deleted past the proxy
bytes_passed      whether a limit holds a client, by the bytes of a few seconds
three_brokers     what needs three brokers: client libraries, consumers at their limit, addresses, brokers that go away
"""
