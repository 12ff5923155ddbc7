"""Real brokers, real clients, and the proxy as a process between them.

    proxy_process     the command itself: started, listened to, drained; exit code 0 or the test fails
    scanned_proxy     the same behind a relay that searches every byte towards clients for a broker's address
    librdkafka        producing and reading with confluent-kafka, for many tests
    java_tools        Kafka's console and perf tools, run to their end
    records           what is produced
    wire              requests made by hand, for what no client sends when it is wanted

One file for each client library; what concerns all of them (addresses, quotas, brokers that go away, restarts) has
files of its own.
"""
