"""Kafka topics: ``KafkaSource`` in ``source`` reads them, ``KafkaWriter`` in ``writer`` writes them.

``start_offsets`` asks the brokers where a partition begins, ``outage`` watches lost brokers, ``client`` loads
confluent-kafka and checks its settings. Importing these modules does not load confluent-kafka.
"""
