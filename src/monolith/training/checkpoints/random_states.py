"""The process-wide random generators of torch, NumPy and Python as JSON, and back."""

from __future__ import annotations

import base64
import random
from typing import Any

import numpy as np
import torch

__all__ = ["decode", "encode"]


def encode() -> dict[str, Any]:
    """Return the generators' states."""
    version, words, gauss = random.getstate()
    numbers: dict[str, Any] = np.random.get_state(legacy=False)
    state: dict[str, Any] = {
        "torch": _text(torch.get_rng_state().numpy().tobytes()),
        "numpy": {
            "kind": numbers["bit_generator"],
            "key": _text(np.asarray(numbers["state"]["key"], "<u4").tobytes()),
            "pos": int(numbers["state"]["pos"]),
            "has_gauss": int(numbers["has_gauss"]),
            "gauss": float(numbers["gauss"]),
        },
        "python": {"version": version, "words": _text(np.array(words, "<u4").tobytes()), "gauss": gauss},
    }
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = [_text(each.numpy().tobytes()) for each in torch.cuda.get_rng_state_all()]
    return state


def decode(state: dict[str, Any]) -> None:
    """Put the generators into the states that ``encode`` returned. Devices that are not here are passed over."""
    torch.set_rng_state(_tensor(state["torch"]))
    numbers = state["numpy"]
    key = np.frombuffer(_bytes(numbers["key"]), "<u4").astype(np.uint32)
    np.random.set_state((numbers["kind"], key, numbers["pos"], numbers["has_gauss"], numbers["gauss"]))
    python = state["python"]
    words = tuple(int(word) for word in np.frombuffer(_bytes(python["words"]), "<u4"))
    random.setstate((python["version"], words, python["gauss"]))
    if torch.cuda.is_available():
        for device, text in enumerate(state.get("cuda", [])[: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(_tensor(text), device)


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)


def _tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(_bytes(text)), dtype=torch.uint8)
