"""Write the files that a server reads beside its model config: platform config and batching parameters.

Main types: ``write_platform_config`` for a foreign server, ``batching_parameters_text`` for ``monolith serve``.
"""

from __future__ import annotations

import logging
from pathlib import Path

from monolith.agent.config import SERVING_HOME, AgentConfig
from monolith.agent.messages import BatchingParameters, write_text
from monolith.core.durable_files import replace_file
from monolith.core.errors import ConfigError

__all__ = ["batching_parameters_text", "platform_config_text", "write_platform_config"]

logger = logging.getLogger(__name__)

_DEFAULT_THREADS = 16
_MAX_BATCH_SIZE = 1024
_BATCH_TIMEOUT_MICROS = 800
_MAX_ENQUEUED_BATCHES = 100_000
_NUM_BATCH_THREADS = 8
# monolith serve queues rows, at most batch size times batches: bounded to about a million rows.
_MAX_QUEUED_ROWS = 1 << 20


def platform_config_text(config: AgentConfig) -> str:
    """Return a PlatformConfigMap as protobuf text.

    The original adds ``support_diff_dim_size_inputs`` to the batching parameters. Only its own build of the server
    knows that field, and a stock server refuses the whole file for it, so it is left out.
    """
    limit = config.environment.host.cpu_limit
    intra = config.server.tensorflow.tensorflow_intra_op_parallelism or limit or _DEFAULT_THREADS
    inter = config.server.tensorflow.tensorflow_inter_op_parallelism or limit or _DEFAULT_THREADS
    batching = ""
    if config.dense.dense_alone and config.server.batching.enable_batching:
        batching = f"""
          batching_parameters {{
            max_batch_size {{ value: {_MAX_BATCH_SIZE} }}
            batch_timeout_micros {{ value: {_BATCH_TIMEOUT_MICROS} }}
            max_enqueued_batches {{ value: {_MAX_ENQUEUED_BATCHES} }}
            num_batch_threads {{ value: {_NUM_BATCH_THREADS} }}
          }}"""
    return f"""platform_configs {{
  key: "tensorflow"
  value {{
    source_adapter_config {{
      [type.googleapis.com/tensorflow.serving.SavedModelBundleSourceAdapterConfig] {{
        legacy_config {{
          session_config {{
            intra_op_parallelism_threads: {intra}
            inter_op_parallelism_threads: {inter}
            allow_soft_placement: true
            gpu_options {{ allow_growth: {_spell(config.server.tensorflow.allow_growth)} }}
          }}{batching}
          enable_model_warmup: {_spell(config.server.loading.enable_model_warmup)}
        }}
      }}
    }}
  }}
}}
"""


def write_platform_config(config: AgentConfig, own_folder: Path) -> Path:
    """Write the platform config of a foreign server and return its path.

    Args:
        config: The configuration; its ``platform_config_file`` names the file, else the serving home has it.
        own_folder: Folder of the agent, used when the folder of the file cannot be written.

    Raises:
        ConfigError: The file cannot be written.
    """
    content = platform_config_text(config).encode()
    wanted = Path(config.server.tensorflow.platform_config_file or f"{SERVING_HOME}/conf/platform_config_file.cfg")
    last: OSError | None = None
    for path in (wanted, own_folder / "platform_config_file.cfg"):
        try:
            replace_file(path, content)
        except OSError as error:
            logger.info("platform config not written path=%s error=%s", path, error)
            last = error
        else:
            return path
    raise ConfigError(f"platform_config_file is {str(wanted)!r}, which cannot be written ({last}); give another path")


def batching_parameters_text() -> str:
    """Return the BatchingParameters of a dense ``monolith serve`` as protobuf text."""
    message = BatchingParameters()
    message.max_batch_size.value = _MAX_BATCH_SIZE
    message.batch_timeout_micros.value = _BATCH_TIMEOUT_MICROS
    message.max_enqueued_batches.value = min(_MAX_ENQUEUED_BATCHES, _MAX_QUEUED_ROWS // _MAX_BATCH_SIZE)
    message.num_batch_threads.value = _NUM_BATCH_THREADS
    return write_text(message)


def _spell(value: bool) -> str:
    return "true" if value else "false"
