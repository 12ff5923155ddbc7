"""What Spark does here: the job that produces through the proxy, and the demo that runs it and looks at every byte.

flights          the real data: 336,776 flights as JSON, with a key and a checksum each
spark_session    a local Spark, quiet and without litter
produce_flights  the PySpark batch job; knows nothing of the proxy, only an address

demo             `make demo`: the job three times, in a playground of its own
proxy_process    the real proxy command       broker_quota    the broker's own quota, for comparison
address_scan     reads along what clients receive, in search of a real broker address
runs             one run and its measure      client_metrics  what Spark's Kafka client says of it
progress         what a person sees meanwhile
verify           every record read back and compared
report, picture  table, verdicts, and bytes per second as a PNG
"""
