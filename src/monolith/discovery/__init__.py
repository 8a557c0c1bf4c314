"""Service discovery of a job's processes: the ``Discovery`` Protocol and its backends.

Backends: memory, file, TF_CONFIG, MLP, ZooKeeper, Consul. Discovery handles addresses only; it does not import torch.
"""

from __future__ import annotations

from monolith.discovery.address import advertised_host, join_address, split_address
from monolith.discovery.base import Added, Discovery, Event, Health, Removed, ServiceInfo, Updated, Watch
from monolith.discovery.consul import ConsulDiscovery
from monolith.discovery.consul_agent import ConsulAgent, ConsulEndpoint, LookupAgent, consul_agent
from monolith.discovery.file import FileDiscovery
from monolith.discovery.guard import DiscoveryGuard
from monolith.discovery.memory import MemoryDiscovery, MemoryRegistry
from monolith.discovery.mlp import MlpDiscovery
from monolith.discovery.opening import DiscoverySettings, DiscoveryType, open_discovery
from monolith.discovery.ordering import Ordering, OrderingIssue, order_servers
from monolith.discovery.tf_config import TfConfigDiscovery
from monolith.discovery.zookeeper import ZooKeeperDiscovery
from monolith.discovery.zookeeper_jobs import prepare_job

__all__ = [
    "Added",
    "ConsulAgent",
    "ConsulDiscovery",
    "ConsulEndpoint",
    "Discovery",
    "DiscoveryGuard",
    "DiscoverySettings",
    "DiscoveryType",
    "Event",
    "FileDiscovery",
    "Health",
    "LookupAgent",
    "MemoryDiscovery",
    "MemoryRegistry",
    "MlpDiscovery",
    "Ordering",
    "OrderingIssue",
    "Removed",
    "ServiceInfo",
    "TfConfigDiscovery",
    "Updated",
    "Watch",
    "ZooKeeperDiscovery",
    "advertised_host",
    "consul_agent",
    "join_address",
    "open_discovery",
    "order_servers",
    "prepare_job",
    "split_address",
]
