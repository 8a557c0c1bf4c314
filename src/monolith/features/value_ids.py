"""Ids of values that a person types, by the declared types of features."""

from __future__ import annotations

import math
import re

from monolith.core import fid
from monolith.core.errors import ConfigError
from monolith.features.declaration import EmbeddingFeature

__all__ = ["id_of_text"]

_INTEGER = re.compile(r"0|-?[1-9][0-9]*")


def id_of_text(feature: EmbeddingFeature, text: str) -> int:
    """Return the id that the data gives to a value of a feature.

    Args:
        feature: The feature, with its declared or recorded type.
        text: The value as text: a number for types of numbers, else the text itself.

    Raises:
        ConfigError: The value does not have the type of the feature, or its id is not a function of the value alone.
    """
    where = f"value of feature {feature.name!r} is {text!r}"
    if feature.id_transform is not None:
        raise ConfigError(
            f"{where}, and id_transform maps its ids to places in a vocabulary; give --table {feature.table} and the "
            "id of the row"
        )
    is_integer = _INTEGER.fullmatch(text) is not None
    try:
        match feature.value_type:
            case "integer" | "text" as kind:
                return fid.id_of(text, value_type=kind)
            case "fid":
                return fid.id_of(int(text) if is_integer else text, slot=feature.slot, hash_wide=feature.hash_wide)
            case "bucket":
                return fid.make_v2(feature.slot or 0, _bucket_of(text))
            case "slot48":
                slot = feature.slot or 0
                return fid.make_v2(slot, int(text)) if is_integer else fid.from_value(slot, text)
    except (ConfigError, ValueError) as error:
        raise ConfigError(f"{where}, expected {feature.value_type}: {error}") from error
    raise ConfigError(
        f"{where}, and the type of its values is not known before the first batch; declare value_type=, or ask again "
        "after the first step"
    )


def _bucket_of(text: str) -> int:
    number = float(text)
    return math.trunc(math.log2(abs(number) + 1)) if math.isfinite(number) else 0
