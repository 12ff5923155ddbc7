"""Variables that Kubernetes sets for Services, and those that users set."""

import pytest

from proxy.config.service_links import service_of

pytestmark = pytest.mark.claim(
    "limits",
    "a Service whose name is like that of an option does not set the option, and a wrong value of "
    "the user stays an error",
)


@pytest.mark.parametrize(
    ("variable", "service"),
    [
        ("KAFKA_QUOTA_PROXY_BROKER_PORT=tcp://10.43.0.7:9092", "kafka-quota-proxy-broker"),
        ("KAFKA_QUOTA_PROXY_BROKER_PORT=sctp://10.43.0.7:9092", "kafka-quota-proxy-broker"),
        ("KAFKA_QUOTA_PROXY_PORT=tcp://10.43.0.7:9092", "kafka-quota-proxy"),
        ("KAFKA_QUOTA_PROXY_SERVICE_HOST=10.43.0.7", "kafka-quota-proxy"),
        ("KAFKA_QUOTA_PROXY_SERVICE_HOST=fd00::7", "kafka-quota-proxy"),
        ("KAFKA_QUOTA_PROXY_SERVICE_PORT=9092", "kafka-quota-proxy"),
        ("KAFKA_QUOTA_PROXY_SERVICE_PORT_KAFKA_TLS=9092", "kafka-quota-proxy"),
        ("KAFKA_QUOTA_PROXY_METRICS_PORT_9404_TCP=tcp://10.43.0.7:9404", "kafka-quota-proxy-metrics"),
        ("KAFKA_QUOTA_PROXY_METRICS_PORT_9404_TCP_PROTO=tcp", "kafka-quota-proxy-metrics"),
        ("KAFKA_QUOTA_PROXY_METRICS_PORT_9404_TCP_PORT=9404", "kafka-quota-proxy-metrics"),
        ("KAFKA_QUOTA_PROXY_METRICS_PORT_9404_UDP_ADDR=10.43.0.7", "kafka-quota-proxy-metrics"),
        ("KAFKA_QUOTA_PROXY_SERVICE_PORT=tcp://10.43.0.7:9092", "kafka-quota-proxy-service"),
        ("KAFKA_QUOTA_PROXY_BROKER_PORT=19200", None),
        ("KAFKA_QUOTA_PROXY_BROKER_PORT=http://10.43.0.7", None),
        ("KAFKA_QUOTA_PROXY_BROKER_PORT=", None),
        ("KAFKA_QUOTA_PROXY_LISTEN_PORT=9092", None),
        ("KAFKA_QUOTA_PROXY_BROKER_PORTS=tcp://10.43.0.7:9092", None),
        ("KAFKA_QUOTA_PROXY_SERVICE_HOST=kafka.example.com", None),
        ("KAFKA_QUOTA_PROXY_LISTEN=tcp://10.43.0.7:9092", None),
    ],
)
def test_the_name_and_the_value_show_a_service(variable: str, service: str | None) -> None:
    name, _, value = variable.partition("=")
    assert service_of(name, value) == service
