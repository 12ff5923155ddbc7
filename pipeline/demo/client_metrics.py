"""What Spark's own Kafka producer says of itself: the metrics that the Java client publishes in its JVM."""

import math

from pyspark.sql import SparkSession


def longest_notice_seconds(spark: SparkSession, client_id: str) -> float:
    """The longest `throttle_time_ms` the producer was told in its last 30 to 60 seconds: longer than a run of the demo.

    The Java client's metric `produce-throttle-time-max`, read over JMX from the newest producer of that client id.
    """
    gateway = spark.sparkContext._gateway
    jvm = gateway.jvm
    server = jvm.java.lang.management.ManagementFactory.getPlatformMBeanServer()
    name = jvm.javax.management.ObjectName(f"kafka.producer:type=producer-metrics,client-id={client_id}")
    # By reflection on the public interface: the server's own class lies in a package that Java does not open.
    signature = gateway.new_array(jvm.java.lang.Class, 2)
    signature[0] = jvm.java.lang.Class.forName("javax.management.ObjectName")
    signature[1] = jvm.java.lang.Class.forName("java.lang.String")
    arguments = gateway.new_array(jvm.java.lang.Object, 2)
    arguments[0] = name
    arguments[1] = "produce-throttle-time-max"
    interface = jvm.java.lang.Class.forName("javax.management.MBeanServer")
    milliseconds = float(interface.getMethod("getAttribute", signature).invoke(server, arguments))
    return 0.0 if math.isnan(milliseconds) else milliseconds / 1000  # NaN: no answer in that time
