"""``job_command``: the command class of ``train``, ``evaluate`` and ``predict``, with a short and a full ``--help``.

``--help`` lists the common options in the panels Task, Data and Run. ``--help-all`` lists every option that the command
uses, in the panels of its sections. The layout is made for the help alone: the command accepts every option.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from typing import Any

import typer.core
from typing_extensions import override

__all__ = ["OF_EVALUATION", "OF_TRAINING", "TRAINING_ONLY", "job_command"]

OF_TRAINING = (
    "task",
    "task_options",
    "max_steps",
    "more",
    "data",
    "label_features",
    "exclude",
    "time_column",
    "eval_data",
    "batch_size",
    "epochs",
    "shuffle_buffer",
    "resume_data",
    "model_dir",
    "save_checkpoints_steps",
    "restore_dir",
    "dense_learning_rate",
    "accelerator",
    "threads",
    "seed",
    "metrics_port",
    "export_when_saving",
)
"""Options in the short help of ``train``."""

OF_EVALUATION = (
    "task",
    "task_options",
    "data",
    "label_features",
    "keys",
    "batch_size",
    "model_dir",
    "accelerator",
    "threads",
)
"""Options in the short help of ``evaluate`` and ``predict``."""

TRAINING_ONLY = frozenset(
    {
        "Checkpoint options",
        "Pipeline options",
        "Gradient options",
        "Publish options",
        "Push options",
        "Serving options",
        "Cluster options",
        "steps",
        "more",
        "steps_per_eval",
        "eval_data",
        "epochs",
        "shuffle_buffer",
        "batch_wait_s",
        "enable_dynamic_sharding",
        "resume_data",
        "log_step_count_steps",
        "save_summary_steps",
        "progressive_validation",
        "metrics_port",
        "metrics_host",
        "deep_insight_name",
        "deep_insight_target",
        "deep_insight_sample_ratio",
        "extra_fields_keys",
        "prediction_path",
        "prediction_kafka_servers",
        "prediction_kafka_topic",
        "profile_some_steps_from",
        "profile_save_steps_interval",
        "controller_port",
        "slow_start_steps",
        "max_slow_start_wait_minute",
        "only_feature_engineering",
        "index",
        "num_workers",
        "early_stopping_metric",
        "early_stopping_steps",
        "early_stopping_patience",
        "early_stopping_min_delta",
        "keep_best_checkpoint",
    }
)
"""Panels and options that ``evaluate`` and ``predict`` do not use."""

_ALL = "--help-all"
_FIRST = ("Task options", "Data options", "Run options")
_HINT = f"Common options follow; {_ALL} lists every option."


def job_command(common: Sequence[str], unused: Collection[str] = ()) -> type[typer.core.TyperCommand]:
    """Return a command class with a short and a full help.

    Args:
        common: Parameters of the short help. The command's parameters without a panel are in it too.
        unused: Panels and parameters that neither help lists.
    """

    class JobCommand(typer.core.TyperCommand):
        """Prints the short help after ``--help``, the full help after ``--help-all``."""

        @override
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            if _ALL in args:
                typer.echo(self._layout(ctx, is_full=True).get_help(ctx))
                ctx.exit()
            return super().parse_args(ctx, args)

        @override
        def format_help(self, ctx: Any, formatter: Any) -> None:
            typer.core.TyperCommand.format_help(self._layout(ctx, is_full=False), ctx, formatter)

        def _layout(self, ctx: Any, *, is_full: bool) -> typer.core.TyperCommand:
            """Return a plain command with the parameters of one help, in the order of their panels."""
            options: list[Any] = []
            parameters: list[Any] = self.get_params(ctx)
            for option in map(copy.copy, parameters):
                panel, name = option.rich_help_panel, option.name
                is_listed = panel is None or is_full or name in common
                if option.hidden or not is_listed or panel in unused or name in unused:
                    continue
                option.rich_help_panel = panel if panel in _FIRST or (is_full and panel) else _FIRST[-1]
                options.append(option)
            order = {name: number for number, name in enumerate(common)}
            options.sort(key=lambda option: order.get(option.name, len(order)))
            options.sort(key=lambda option: _rank(option.rich_help_panel))
            return typer.core.TyperCommand(
                self.name,
                params=options,
                help=self.help if is_full else f"{self.help}\n\n{_HINT}",
                epilog=self.epilog,
                add_help_option=False,
                rich_markup_mode=self.rich_markup_mode,
            )

    return JobCommand


def _rank(panel: str) -> int:
    return _FIRST.index(panel) if panel in _FIRST else len(_FIRST)
