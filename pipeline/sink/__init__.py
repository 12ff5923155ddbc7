"""A production sink: files to a Kafka topic by Structured Streaming, at the pace of a quota, over kills and restarts.

    folder of files ─ micro-batches of rate × seconds ─▶ Kafka producer, small buffer ─▶ proxy ─▶ brokers
                      checkpoint: which files are done

sizing   from the quota to the bytes of a micro-batch and the settings of the producer
stream   the query: lines to records with a key, into Spark's Kafka sink
follow   one line for each micro-batch: records, bytes per second, time blocked
command  `python -m pipeline.sink`, and what spark-submit runs

What holds, and by what:

Nothing is lost     a micro-batch is committed to the checkpoint when the brokers have acknowledged all of its records
                    (`acks=all`); a sink that was killed repeats the micro-batch in flight, from the same files.
At least once       the repeated micro-batch is written twice, and nothing else: the producer is idempotent, so its own
                    retries write once. Both copies have the same key, so consumers can drop the second.
The quota is felt   The proxy slows the producer, whose full buffer blocks Spark's tasks. So a micro-batch takes bytes ÷
                    rate, the next one starts later, and files wait in their folder.
No record expires   buffer.memory ÷ rate is far below delivery.timeout.ms, for any rate.
"""
