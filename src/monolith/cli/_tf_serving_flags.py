"""``translate``: rewrites the flags of ``tensorflow_model_server`` as flags of ``monolith serve``.

A start command of TensorFlow Serving then starts ``monolith serve`` unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

from monolith.core.errors import ConfigError

__all__ = ["translate"]

_RENAMED = {
    "model-name": "name",
    "rest-api-port": "rest-port",
    "grpc-max-threads": "grpc-threads",
    "num-load-threads": "load-threads",
    "max-num-load-retries": "load-retries",
    "file-system-poll-wait-seconds": "version-poll-s",
    "model-config-file-poll-wait-seconds": "config-poll-s",
}
_SWITCHES = {"enable-batching": "batching", "enable-model-warmup": "warm-up"}
# Flag -> our flag, and the divisor of its number.
_SCALED = {
    "rest-api-timeout-in-ms": ("request-timeout-s", 1e3),
    "load-retry-interval-micros": ("load-retry-interval-s", 1e6),
}
# Flags about TensorFlow's runtime, logs and metrics, and those of the original's build of it.
_IGNORED = (
    "allow-version-labels-for-unavailable-models",
    "archon-",
    "conf-file",
    "enable-cors-support",
    "enable-profiler",
    "enable-signature-method-name-check",
    "flush-filesystem-caches",
    "force-allow-any-version-labels-for-unavailable-models",
    "log-conf",
    "metrics-namespace-prefix",
    "mixed-precision",
    "num-request-iterations-for-warmup",
    "num-unload-threads",
    "per-process-gpu-memory-fraction",
    "platform-config-file",
    "remove-unused-fields-from-bundle-metagraph",
    "rest-api-num-threads",
    "saved-model-tags",
    "skip-initialize-tpu",
    "tensorflow-",
    "thread-pool-factory-config-file",
    "xla-cpu-compilation-enabled",
)


def translate(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments as flags of ``monolith serve``, and the flags without a counterpart, which are dropped.

    >>> translate(["--port=8500", "--rest_api_port=8501", "--enable_batching=true"])
    (['--port=8500', '--rest-port=8501', '--batching'], [])

    Raises:
        ConfigError: The value of a flag is invalid.
    """
    flags: list[str] = []
    ignored: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            return [*flags, argument, *rest], ignored
        if not argument.startswith("--"):
            flags.append(argument)
            continue
        original, equals, value = argument[2:].partition("=")
        name = original.replace("_", "-")
        is_tf_serving = "_" in original or name in _RENAMED
        if name.startswith(_IGNORED):
            ignored.append(f"--{original}")
            if not equals and rest and not rest[0].startswith("--"):
                rest.pop(0)
        elif name in _SWITCHES:
            flags.append(f"--{'' if _is_true(original, value if equals else 'true') else 'no-'}{_SWITCHES[name]}")
        elif name in _RENAMED or name in _SCALED or is_tf_serving:
            if not equals and rest:
                value = rest.pop(0)
            flags.extend(_translate_value(name, original, value))
        else:
            flags.append(argument)
    return flags, ignored


def _translate_value(name: str, original: str, value: str) -> list[str]:
    if name in _SCALED:
        ours, scale = _SCALED[name]
        try:
            return [f"--{ours}={float(value) / scale:g}"]
        except ValueError as exc:
            raise ConfigError(f"--{original} is {value!r}, expected a number") from exc
    ours = _RENAMED.get(name, name)
    if name == "rest-api-port" and value == "0":
        value = "-1"  # 0 turns REST off in TensorFlow Serving
    if ours == "load-threads" and value == "0":
        return []
    if ours.endswith("-poll-s") and value.startswith("-"):
        value = "0"
    return [f"--{ours}={value}"]


def _is_true(original: str, value: str) -> bool:
    if value.lower() in ("true", "1", "yes"):
        return True
    if value.lower() in ("false", "0", "no"):
        return False
    raise ConfigError(f"--{original} is {value!r}, expected true or false")
