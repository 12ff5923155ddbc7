"""The entry script for spark-submit, with the package as a zip:

    zip -r usage.zip pipeline quotas -i '*.py' '*.json' '*.css'
    spark-submit --packages io.delta:delta-spark_2.13:4.0.0,org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0 \\
        --conf spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension \\
        --conf spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog \\
        --py-files usage.zip pipeline/usage/submit.py report --warehouse s3a://usage
"""

import sys

from pipeline.usage.cli import main

if __name__ == "__main__":
    sys.exit(main())
