"""Usage records: who used what, and what limits did to whom, to a Kafka topic or a file. docs/pipeline/records.md.

    counters of /metrics ─▶ reader ─▶ series ─▶ samples ─▶ records ─▶ topic_sink | sink

client_ids   the client id of records: labels, and `*` for counters
series       cumulative counters, bounded in number      reader      adds what is new in the counters to series
samples      what is not written yet, bounded            records     a sample as one JSON object
collector    one reading: from counters to samples       emitter     when to read and to write, in the event loop
sink         what a sink is, its errors, and JSON lines in a file
topic_sink   a Kafka topic, by aiokafka                  topic_check creates the topic, refuses a compacted one
"""
