"""The job that produces through the proxy, and the demo that runs it and checks every byte.

flights          the real data: 336,776 flights as JSON, with a key and a checksum each
produce_flights  the PySpark batch job; knows nothing of the proxy, only an address

command          `make demo`: the job three times, in its own playground
proxy_process    the real proxy command
address_scan     scans what clients receive for a real broker address
runs             one run and its measurement
progress         the live progress in the terminal
verify           every record read back and compared
report, picture  table, verdicts, and bytes per second as a PNG
usage_report     the usage pipeline over the records of the demo's proxies

sharing          `make demo-fleet`: eight sidecars share one limit
moving_client    a producer whose demand moves, for benchmarks, too
usage            `make demo-usage`: the usage pipeline over two weeks of a fleet that does not exist
fleet            generates their records, for tests and benchmarks, too
"""
