"""A model behind FastAPI, as a program: uvicorn with uvloop and httptools imports ``app`` in each of its workers."""

from __future__ import annotations

import json
import os
import sys

from fastapi import FastAPI, Request, Response

from serving.peer_model import PeerModel

__all__ = ["app", "main"]

app = FastAPI(openapi_url=None)
model = PeerModel.of_environment(os.environ)


@app.post("/predict")
async def predict(request: Request) -> Response:
    # In the loop's thread: handing a call this short to a thread of the pool costs more than it gains. The answer is
    # made here, as FastAPI's own encoder walks over every value.
    scores = model.score(*model.read(await request.body()))
    return Response(json.dumps({"ctr": scores.tolist()}), media_type="application/json")


def main() -> None:
    import uvicorn

    port, workers = int(sys.argv[1]), int(sys.argv[2])
    uvicorn.run(
        "serving.fastapi_peer:app",
        host="127.0.0.1",
        port=port,
        workers=workers,
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
    )


if __name__ == "__main__":
    main()
