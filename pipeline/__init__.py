"""PySpark around the proxy: the demo that produces through it, and the pipeline over what it reports.

spark_session  a local Spark, quiet and without litter
demo/          `make demo`: a Spark job through the proxy, measured and read back
usage/         from the proxy's usage records to tables: usage, delays between clients, costs
"""
