"""Usage records, written to a Kafka topic or a file: what each client used, and how limits affected it.
docs/pipeline/records.md.

    counters of /metrics ─▶ reader ─▶ series ─▶ samples ─▶ records ─▶ topic_sink | sink

client_ids   the client id of records: labels, and `*` for counters
series       cumulative counters, bounded in number      reader      adds what is new in the counters to series
samples      records that are not written yet, bounded   records     a sample as one JSON object
collector    one reading: from counters to samples       emitter     when to read and to write, in the event loop
sink         the interface of a sink, its errors, and JSON lines in a file
topic_sink   a Kafka topic, by aiokafka                  usage_topic  creates the topic, refuses a compacted one
"""
