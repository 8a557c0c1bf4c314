"""Trains a small model, exports it, serves the export in this process, and sends requests over gRPC and REST.

Run it with ``python examples/10_export_and_serve.py``. ``monolith serve FOLDER --name clicks`` serves in a
separate process; clients use the same calls.
"""

from __future__ import annotations

import json
import tempfile
import urllib.request
from pathlib import Path

import numpy as np

import monolith as mt
from monolith.demo.world import World
from monolith.serving import Client, ModelConfig, ModelServer, ServingConfig, servable_loader

CLICKS = World(users=200, items=100, seed=4).clicks(5_000)
ROWS = 3


def train() -> mt.Estimator:
    estimator = mt.Estimator(
        lambda: mt.models.DeepFM(
            sparse={"user_id": 1, "item_id": 2}, dense=["price"], dim=4, hidden=[8], vec_compressor=mt.Fp32()
        ),
        mt.RunConfig(seed=6),
    )
    estimator.train(CLICKS.dataset().batch(256))
    return estimator


def features() -> dict[str, list]:
    """Return the first rows as a client sends them: plain ids and numbers, by feature name."""
    return {
        "user_id": CLICKS.user_id[:ROWS].tolist(),
        "item_id": CLICKS.item_id[:ROWS].tolist(),
        "price": CLICKS.price[:ROWS].tolist(),
    }


def over_grpc(address: str) -> np.ndarray:
    with Client(address, model="clicks") as client:
        (name,) = client.metadata()["serving_default"]["outputs"]
        return client.predict(features())[name]


def over_rest(address: str) -> np.ndarray:
    body = json.dumps({"inputs": features()}).encode()
    with urllib.request.urlopen(f"http://{address}/v1/models/clicks:predict", body) as answer:
        return np.array(json.load(answer)["outputs"], np.float32)


def main() -> None:
    estimator = train()
    trained = next(iter(next(estimator.predict(CLICKS.dataset().batch(ROWS))).values()))
    with tempfile.TemporaryDirectory() as name:
        version = estimator.export(Path(name) / "clicks", version=1)
        print("exported:", ", ".join(sorted(path.name for path in version.iterdir())))
        config = ServingConfig(
            models=[ModelConfig(name="clicks", base_path=version.parent)], port=0, rest_port=0, version_poll_s=0
        )
        with ModelServer(config, servable_loader()) as server:
            server.models.wait_until_settled()
            for kind, scores in (("gRPC", over_grpc(server.address)), ("REST", over_rest(server.rest_address))):
                is_same = np.abs(scores - trained).max() < 1e-6
                shown = ", ".join(f"{score:.4f}" for score in scores)
                print(f"{kind}: {shown}, {'the same' if is_same else 'NOT the same'} as the estimator within 1e-6")
    print("Next: docs/guide/serving.md has versions, many models, batching, and tables on other servers")


if __name__ == "__main__":
    main()
