"""``create_topic``: makes a topic of Kafka where it is absent. Needs the extra ``kafka``."""

from __future__ import annotations

import importlib

from monolith.core.errors import ClusterError
from monolith.data.sources.kafka.client import load_client

__all__ = ["create_topic"]


def create_topic(servers: str, topic: str, *, partitions: int = 1, timeout_s: float = 10.0) -> None:
    """Create a topic, unless it exists.

    Args:
        servers: Brokers as ``host:port,...``.
        topic: Name of the topic.
        partitions: Number of partitions of a new topic.
        timeout_s: Timeout of each call.

    Raises:
        ClusterError: The brokers do not answer, or refuse.
    """
    kafka = load_client()
    admin = importlib.import_module("confluent_kafka.admin")
    client = admin.AdminClient({"bootstrap.servers": servers})
    try:
        known = client.list_topics(topic, timeout=timeout_s).topics.get(topic)
        if known is not None and known.error is None and known.partitions:
            return
        wanted = admin.NewTopic(topic, num_partitions=partitions)
        (made,) = client.create_topics([wanted], request_timeout=timeout_s).values()
        made.result(timeout_s)
    except TimeoutError as error:
        raise ClusterError(f"topic {topic!r} is not created by {servers} within {timeout_s:g} s; create it") from error
    except kafka.KafkaException as error:
        if error.args[0].code() != kafka.KafkaError.TOPIC_ALREADY_EXISTS:
            raise ClusterError(f"topic {topic!r} is not created by {servers}: {error}; check the brokers") from error
