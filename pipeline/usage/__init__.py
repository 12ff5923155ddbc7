"""The usage pipeline: usage, delays between clients, and costs, from the proxy's cumulative counters.

    Kafka topic ─ jobs.ingest ─▶ records, quarantine
                  jobs.report ─▶ samples ▶ deltas ▶ usage_hourly, throttling_hourly ▶ chargeback_daily, bypass_check
                                         ▶ noisy_neighbours, waiting_cost
                                         ▶ rates_quarterly ▶ quota_recommendations
                               ▶ sidecars, topic_holes ▶ HTML, CSV, Parquet, FOCUS

records      the published record format: a JSON Schema, and its validator
schemas      every Delta table: columns, partitions, retention
transforms/  DataFrame in, DataFrame out; no input or output, no action
tables       reads and writes Delta tables; makes each write idempotent
isolation    a step without the clients that it fails for
jobs/        what runs on a cluster: ingest, report, close, simulate, snapshots
owners, price_list, quotas_in_force
             TOML that people write
page/        the self-contained HTML report
session, cli how it starts: `python -m pipeline.usage`, or spark-submit

Nothing here imports the proxy. Only `jobs.replay` and `quotas_in_force` import `quotas`.
"""
