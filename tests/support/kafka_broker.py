"""A Kafka broker in a process of its own: librdkafka's mock cluster, driven through its C interface.

It prints its address. Each line of standard input is a command, answered by a line with 0 when it worked: ``topic NAME
PARTITIONS`` makes a topic, ``advertise PORT`` makes clients come back through another port. The broker ends when
standard input does.
"""

from __future__ import annotations

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
    lib = library()
    error = ctypes.create_string_buffer(512)
    config = lib.rd_kafka_conf_new()
    lib.rd_kafka_conf_set(config, b"log_level", b"0", error, len(error))
    handle = lib.rd_kafka_new(PRODUCER, config, error, len(error))
    cluster = lib.rd_kafka_mock_cluster_new(handle, 1)
    lib.rd_kafka_mock_group_initial_rebalance_delay_ms(cluster, 0)
    address = lib.rd_kafka_mock_cluster_bootstraps(cluster).decode()
    print(address, flush=True)
    for line in sys.stdin:
        match line.split():
            case ["topic", name, partitions]:
                done = lib.rd_kafka_mock_topic_create(cluster, name.encode(), int(partitions), 1)
            case ["advertise", port]:
                done = lib.rd_kafka_mock_broker_set_host_port(cluster, 1, b"127.0.0.1", int(port))
            case _:
                sys.exit(f"unknown command {line!r}")
        print(done, flush=True)


if __name__ == "__main__":
    main()
