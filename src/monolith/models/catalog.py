"""Ready-made models by name, built from options or from the schema of the data.

The callers are the command line and configuration files, which have text instead of classes.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_type_hints

from monolith.core.errors import ConfigError
from monolith.data import DenseFeature, Schema, SparseFeature
from monolith.embedding.compressors import COMPRESSORS
from monolith.embedding.initializers import INITIALIZERS
from monolith.embedding.optimizers import OPTIMIZERS
from monolith.features import Model
from monolith.models.dcnv2 import DCNv2
from monolith.models.deepfm import DeepFM
from monolith.models.dien import DIEN
from monolith.models.din import DIN
from monolith.models.dlrm import DLRM
from monolith.models.fields import TableOptions, sparse_input
from monolith.models.mmoe import MMoE
from monolith.models.two_tower import TwoTower

__all__ = ["MODELS", "build", "from_schema", "model_class"]

MODELS: Mapping[str, type[Model]] = {
    "deepfm": DeepFM,
    "dcnv2": DCNv2,
    "din": DIN,
    "dien": DIEN,
    "mmoe": MMoE,
    "dlrm": DLRM,
    "two_tower": TwoTower,
}
"""Every ready-made model by its name."""

# Options that name features, and need no more than the name when the data's schema is known.
_ROLES = ("user", "item", "history")
_PARTS: Mapping[str, Mapping[str, type[Any]]] = {
    "vec_optimizer": OPTIMIZERS,
    "vec_initializer": INITIALIZERS,
    "vec_compressor": COMPRESSORS,
    "bias_optimizer": OPTIMIZERS,
}


def model_class(name: str) -> type[Model]:
    """Return a ready-made model by its name; case, ``-`` and ``_`` make no difference.

    Raises:
        ConfigError: There is none of that name.

    >>> model_class("Two-Tower").__name__
    'TwoTower'
    """
    plain = {known.replace("_", ""): model for known, model in MODELS.items()}
    wanted = name.lower().replace("_", "").replace("-", "")
    if wanted not in plain:
        raise ConfigError(f"there is no ready-made model {name!r}; {_nearest(name, MODELS)}")
    return plain[wanted]


def build(name: str, options: Mapping[str, Any]) -> Model:
    """Make a ready-made model.

    Args:
        name: Its name.
        options: The keyword arguments of its class, as they come from JSON or YAML. An optimizer, initializer or
            compressor may be a mapping: its ``kind`` and its settings.

    Raises:
        ConfigError: There is no such model, or an option is unknown, missing or wrong.

    >>> model = build("deepfm", {"sparse": ["user_id"], "vec_optimizer": {"kind": "sgd", "learning_rate": 0.5}})
    >>> type(model).__name__, model.declaration.slices["user_id"]["vec"].optimizer
    ('DeepFM', Sgd(learning_rate=0.5, warmup_steps=0))
    """
    cls = model_class(name)
    known = _keywords(cls)
    for option in options:
        if option not in known:
            raise ConfigError(f"{cls.__name__} has no option {option!r}; {_nearest(option, known)}")
    missing = [option for option, is_required in known.items() if is_required and option not in options]
    if missing:
        raise ConfigError(f"{cls.__name__} needs {' and '.join(map(repr, missing))}; give the names of features")
    return cls(**{option: _part(option, value) for option, value in options.items()})


def from_schema(
    name: str, schema: Schema, options: Mapping[str, Any] | None = None, *, labels: Sequence[str] = ()
) -> Model:
    """Make a ready-made model that reads every feature of a schema, such as ``infer_schema`` proposes.

    Features with ids, whole numbers or text become sparse; real numbers become dense. Labels and the weight are left
    out. Which features are item, history or user is not guessed: name them in the options. Options ``sparse`` and
    ``dense`` choose among the features of the schema.

    Args:
        name: The model's name.
        schema: Schema of the data.
        options: As those of ``build``.
        labels: Features that hold the labels; none = those that the schema names. Several become the heads of a model
            with heads.

    Raises:
        ConfigError: As ``build``; or an option names a feature that the schema does not have.

    >>> schema = Schema(dense=[DenseFeature("user_id", dtype="int64"), DenseFeature("price"), DenseFeature("click")])
    >>> made = from_schema("deepfm", schema, labels=["click"])
    >>> [feature.name for feature in made.declaration.schema().sparse_features], list(made.declaration.dense)
    (['user_id'], ['price'])
    """
    cls = model_class(name)
    given = dict(options or {})
    held = list(labels) or list(schema.label_features)
    sparse, dense = _features(schema, leave_out={*held, schema.weight_feature})
    known = _keywords(cls)
    named: set[str] = set()
    for role in (each for each in _ROLES if each in given):
        given[role] = _choose(f"{cls.__name__}.{role}", given[role], sparse)
        named |= {each.name for each in _as_list(given[role])}
    for kind, features in (("sparse", sparse), ("dense", dense)):
        if kind in given:
            given[kind] = _choose(f"{cls.__name__}.{kind}", given[kind], features)
        elif kind in known:
            given[kind] = [feature for feature in features.values() if feature.name not in named]
    if "heads" in known and held:
        given.setdefault("heads", held)
    return build(name, given)


def _features(schema: Schema, leave_out: set[str]) -> tuple[dict[str, SparseFeature], dict[str, DenseFeature]]:
    """Return the sparse and the dense features of a schema; whole numbers and text become ids."""
    sparse = {feature.name: feature for feature in schema.sparse_features}
    dense: dict[str, DenseFeature] = {}
    for feature in schema.dense_features:
        if feature.dtype == "float32":
            dense[feature.name] = feature
        else:
            made = sparse_input(feature.name)
            sparse[feature.name] = SparseFeature(made.name, made.slot, feature.column)
    return (
        {name: each for name, each in sparse.items() if name not in leave_out},
        {name: each for name, each in dense.items() if name not in leave_out},
    )


def _choose(label: str, given: Any, features: Mapping[str, Any]) -> Any:
    """Replace names by features of the schema."""
    if isinstance(given, str):
        if given not in features:
            raise ConfigError(f"{label} is {given!r}, which the data does not have; {_nearest(given, features)}")
        return features[given]
    if isinstance(given, list | tuple):
        return [_choose(label, each, features) for each in given]
    return given


def _as_list(value: Any) -> list[Any]:
    values = value if isinstance(value, list | tuple) else [value]
    return [each for each in values if isinstance(each, SparseFeature)]


def _keywords(cls: type[Model]) -> dict[str, bool]:
    """Return the keyword arguments of a model, and whether each must be given."""
    parameters = inspect.signature(cls).parameters.values()
    own = {each.name: each.default is each.empty for each in parameters if each.kind is each.KEYWORD_ONLY}
    return own | dict.fromkeys(get_type_hints(TableOptions), False)


def _part(option: str, value: Any) -> Any:
    """Make an optimizer, initializer or compressor of a mapping; leave everything else as it is."""
    if option not in _PARTS or not isinstance(value, Mapping):
        return value
    # A wrapper such as "dc" has another optimizer inside.
    family, settings = _PARTS[option], {name: _part(option, inner) for name, inner in value.items()}
    kind = settings.pop("kind", None)
    if kind not in family:
        raise ConfigError(f"{option} is of kind {kind!r}; {_nearest(str(kind), family)}")
    try:
        return family[kind](**settings)
    except TypeError as error:
        raise ConfigError(
            f"{option} of kind {kind!r}: {error}; see monolith.embedding.{family[kind].__name__}"
        ) from error


def _nearest(name: str, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(names) or 'none'}"
