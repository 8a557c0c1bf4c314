"""A model behind LitServe, as a program: its queue, its batching, its worker processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import litserve
import torch
from torch import Tensor

from serving.peer_model import PeerModel

__all__ = ["Api", "main"]


class Api(litserve.LitAPI):
    """One model in one worker."""

    def setup(self, device: str) -> None:  # noqa: D102
        self.model = PeerModel.of_environment(os.environ)

    def decode_request(self, request):  # type: ignore[no-untyped-def]  # noqa: D102  LitServe reads the annotation
        return self.model.read(request)

    def batch(self, inputs: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:  # noqa: D102
        self.sizes = [len(ids) for ids, _ in inputs]
        return torch.cat([ids for ids, _ in inputs]), torch.cat([dense for _, dense in inputs])

    def predict(self, x: tuple[Tensor, Tensor]) -> Tensor:  # noqa: D102
        return self.model.score(*x)

    def unbatch(self, output: Tensor) -> Sequence[Tensor]:  # noqa: D102
        return output.split(self.sizes)

    def encode_response(self, output: Tensor) -> dict[str, list[float]]:  # noqa: D102
        return {"ctr": output.tolist()}


def main() -> None:
    port, workers, batch = (int(each) for each in sys.argv[1:4])
    api = Api(max_batch_size=batch, batch_timeout=0.0)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=workers, fast_queue=True, timeout=60)
    server.run(host="127.0.0.1", port=port, log_level="warning", generate_client_file=False, access_log=False)


if __name__ == "__main__":
    main()
