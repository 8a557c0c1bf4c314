"""A Kafka broker in a process of its own: librdkafka's mock cluster, driven through its C interface.

Arguments: ``--advertise PORT`` makes clients come back through that port. It prints its address. Each line of standard
input, ``name:partitions``, makes a topic and is answered by a line; the broker ends when standard input does.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from pathlib import Path

import confluent_kafka  # noqa: F401 - loads librdkafka

PRODUCER = 0


def library() -> ctypes.CDLL:
    maps = Path("/proc/self/maps").read_text().splitlines()
    lib = ctypes.CDLL(next(line.split()[-1] for line in maps if "librdkafka" in line))
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    for name, result, arguments in (
        ("rd_kafka_conf_new", pointer, []),
        ("rd_kafka_conf_set", number, [pointer, text, text, text, ctypes.c_size_t]),
        ("rd_kafka_new", pointer, [number, pointer, text, ctypes.c_size_t]),
        ("rd_kafka_mock_cluster_new", pointer, [pointer, number]),
        ("rd_kafka_mock_cluster_bootstraps", text, [pointer]),
        ("rd_kafka_mock_group_initial_rebalance_delay_ms", None, [pointer, ctypes.c_int32]),
        ("rd_kafka_mock_topic_create", number, [pointer, text, number, number]),
        ("rd_kafka_mock_broker_set_host_port", number, [pointer, ctypes.c_int32, text, number]),
    ):
        getattr(lib, name).restype = result
        getattr(lib, name).argtypes = arguments
    return lib


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--advertise", type=int)
    arguments = parser.parse_args()
    lib = library()
    error = ctypes.create_string_buffer(512)
    config = lib.rd_kafka_conf_new()
    lib.rd_kafka_conf_set(config, b"log_level", b"0", error, len(error))
    handle = lib.rd_kafka_new(PRODUCER, config, error, len(error))
    cluster = lib.rd_kafka_mock_cluster_new(handle, 1)
    lib.rd_kafka_mock_group_initial_rebalance_delay_ms(cluster, 0)
    address = lib.rd_kafka_mock_cluster_bootstraps(cluster).decode()
    if arguments.advertise:
        lib.rd_kafka_mock_broker_set_host_port(cluster, 1, b"127.0.0.1", arguments.advertise)
    print(address, flush=True)
    for line in sys.stdin:
        name, _, partitions = line.strip().partition(":")
        print(lib.rd_kafka_mock_topic_create(cluster, name.encode(), int(partitions), 1), flush=True)


if __name__ == "__main__":
    main()
