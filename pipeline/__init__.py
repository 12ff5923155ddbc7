"""PySpark around the proxy: jobs that produce through it, and the pipeline over what it reports.

spark_session   a local Spark, quiet and without litter; or spark-submit's
client_metrics  what Kafka's Java producer in Spark measures of itself
brokers         whether brokers answer and a topic exists, before a job starts
failures        one line from what Spark's JVM raises
options         types of command line options
sink/           a production sink: files to a topic at the pace of a quota, over kills and restarts
usage/          from the proxy's usage records to tables: usage, delays between clients, costs
"""
