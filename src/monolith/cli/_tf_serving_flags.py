"""The flags of ``tensorflow_model_server`` in the spelling of ``monolith serve``: one starts in place of the other.

Pure text: knows which flag means which, and nothing of what they do.
"""

from __future__ import annotations

from collections.abc import Sequence

from monolith.core.errors import ConfigError

__all__ = ["translated"]

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
# Flag, what it is here, and by how much its number is divided.
_SCALED = {
    "rest-api-timeout-in-ms": ("request-timeout-s", 1e3),
    "load-retry-interval-micros": ("load-retry-interval-s", 1e6),
}
# Theirs, and those of the original's own build: about TensorFlow's runtime, its logs and its metrics.
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


def translated(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments in our spelling, and the flags that have no meaning here and were left out.

    >>> translated(["--port=8500", "--rest_api_port=8501", "--enable_batching=true"])
    (['--port=8500', '--rest-port=8501', '--batching'], [])

    Raises:
        ConfigError: A value is none of its flag.
    """
    found: list[str] = []
    ignored: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            return [*found, argument, *rest], ignored
        if not argument.startswith("--"):
            found.append(argument)
            continue
        spelled, equals, value = argument[2:].partition("=")
        name = spelled.replace("_", "-")
        is_theirs = "_" in spelled or name in _RENAMED
        if name.startswith(_IGNORED):
            ignored.append(f"--{spelled}")
            if not equals and rest and not rest[0].startswith("--"):
                rest.pop(0)
        elif name in _SWITCHES:
            found.append(f"--{'' if _is_true(spelled, value if equals else 'true') else 'no-'}{_SWITCHES[name]}")
        elif name in _RENAMED or name in _SCALED or is_theirs:
            if not equals and rest:
                value = rest.pop(0)
            found.extend(_valued(name, spelled, value))
        else:
            found.append(argument)
    return found, ignored


def _valued(name: str, spelled: str, value: str) -> list[str]:
    if name in _SCALED:
        ours, scale = _SCALED[name]
        try:
            return [f"--{ours}={float(value) / scale:g}"]
        except ValueError as exc:
            raise ConfigError(f"--{spelled} is {value!r}; give a number") from exc
    ours = _RENAMED.get(name, name)
    if name == "rest-api-port" and value == "0":
        value = "-1"  # there, 0 means that it is not served
    if ours == "load-threads" and value == "0":
        return []
    if ours.endswith("-poll-s") and value.startswith("-"):
        value = "0"
    return [f"--{ours}={value}"]


def _is_true(spelled: str, value: str) -> bool:
    if value.lower() in ("true", "1", "yes"):
        return True
    if value.lower() in ("false", "0", "no"):
        return False
    raise ConfigError(f"--{spelled} is {value!r}; give true or false")
