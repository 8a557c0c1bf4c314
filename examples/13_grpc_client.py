"""Asks a model server over gRPC: metadata, features, records, a timeout, and an error with its remedy.

Run it with ``python examples/13_grpc_client.py``. It starts a server in this process. With the address of another
server, as in ``python examples/13_grpc_client.py 127.0.0.1:8500``, it asks that one for the model ``clicks``.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import monolith as mt
from monolith.core.errors import MonolithError
from monolith.data.records.messages import Example
from monolith.demo.world import World
from monolith.serving import Client, ModelConfig, ModelServer, ServingConfig, servable_loader

FEATURES = {"user_id": [7, 8], "item_id": [3, 3], "price": [1.0, 2.5]}


@contextmanager
def local_server() -> Iterator[str]:
    """Serve a small model; yield its address."""
    estimator = mt.Estimator(
        lambda: mt.models.DeepFM(sparse={"user_id": 1, "item_id": 2}, dense=["price"], dim=4, hidden=[8])
    )
    estimator.train(World(users=20, items=10, seed=4).clicks(500).dataset().batch(100))
    with tempfile.TemporaryDirectory() as name:
        version = estimator.export(Path(name) / "clicks", version=1)
        models = [ModelConfig(name="clicks", base_path=version.parent)]
        config = ServingConfig(models=models, port=0, rest_port=None, version_poll_s=0)
        with ModelServer(config, servable_loader()) as server:
            server.models.wait_until_settled()
            yield server.address


def make_record(index: int) -> bytes:
    """Return one row as a serialized Example, the message that training reads too."""
    example = Example()
    for name in ("user_id", "item_id"):
        example.named_feature.add(name=name).feature.int64_list.value.append(FEATURES[name][index])
    example.named_feature.add(name="price").feature.float_list.value.append(FEATURES["price"][index])
    return example.SerializeToString()


def ask(address: str) -> None:
    with Client(address, model="clicks") as client:
        (version,) = client.status()
        signature = client.metadata()["serving_default"]
        print(f"version {version.version} is {version.state}; outputs {', '.join(signature['outputs'])}")
        by_name = next(iter(client.predict(FEATURES, timeout_s=5.0).values()))
        by_record = next(iter(client.score([make_record(0), make_record(1)]).values()))
        is_same = np.array_equal(by_name, by_record)
        print(f"features and records give {'the same' if is_same else 'DIFFERENT'} scores for {len(by_name)} rows")
        try:
            client.predict({"user_id": [7], "item_id": [3], "prize": [1.0]})
        except MonolithError as error:
            print(f"refused: {error}")


def main() -> None:
    if len(sys.argv) > 1:
        ask(sys.argv[1])
    else:
        with local_server() as address:
            ask(address)
    print("Next: docs/guide/serving.md has REST, TLS, tokens, batching and many models")


if __name__ == "__main__":
    main()
