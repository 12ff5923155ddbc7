"""Metrics of Kafka's Java producer in this process's Spark JVM, over JMX. On a cluster producers run elsewhere."""

import math

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession


def longest_throttle_seconds(spark: SparkSession, client_id: str) -> float:
    """The largest `throttle_time_ms` that the producer received in its last 30 to 60 seconds, in seconds.

    0.0 without a response in that time, or without such a producer.
    """
    milliseconds = _metric(spark, client_id, "produce-throttle-time-max")
    return 0.0 if milliseconds is None or math.isnan(milliseconds) else milliseconds / 1000


def blocked_seconds(spark: SparkSession, client_id: str) -> float | None:
    """Seconds that tasks have waited for the producer so far: for a free send buffer, and in flush() at their end.

    Tasks wait at the same time, so the sum can grow faster than time. None without such a producer.
    """
    waited_ns = _metric(spark, client_id, "bufferpool-wait-time-ns-total")
    flushed_ns = _metric(spark, client_id, "flush-time-ns-total")
    return None if waited_ns is None or flushed_ns is None else (waited_ns + flushed_ns) / 1e9


def _metric(spark: SparkSession, client_id: str, name: str) -> float | None:
    """A metric of the newest producer of this client id in the JVM; None without one."""
    gateway = spark.sparkContext._gateway
    jvm = gateway.jvm
    server = jvm.java.lang.management.ManagementFactory.getPlatformMBeanServer()
    quoted = jvm.javax.management.ObjectName.quote(client_id)
    # Kafka quotes a client id only where JMX needs it.
    plain = all(character.isalnum() or character in "-_.@+ " for character in client_id)
    bean = jvm.javax.management.ObjectName(
        f"kafka.producer:type=producer-metrics,client-id={client_id if plain else quoted}"
    )
    # By reflection on the public interface: the server's own class lies in a package that Java does not open.
    signature = gateway.new_array(jvm.java.lang.Class, 2)
    signature[0] = jvm.java.lang.Class.forName("javax.management.ObjectName")
    signature[1] = jvm.java.lang.Class.forName("java.lang.String")
    arguments = gateway.new_array(jvm.java.lang.Object, 2)
    arguments[0] = bean
    arguments[1] = name
    interface = jvm.java.lang.Class.forName("javax.management.MBeanServer")
    try:
        return float(interface.getMethod("getAttribute", signature).invoke(server, arguments))
    except Py4JJavaError as error:
        if "InstanceNotFoundException" in str(error):
            return None
        raise
