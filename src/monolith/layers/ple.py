"""PLE: levels of experts, some of one task and some of all, so that tasks share without disturbing each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor, nn

from monolith.core.errors import ConfigError
from monolith.layers._arguments import check_dims, check_whole
from monolith.layers.activations import ActivationLike
from monolith.layers.configured import Configured
from monolith.layers.dense import Dense
from monolith.layers.initializers import InitializerLike
from monolith.layers.mlp import MLP, MLPOptions

__all__ = ["PLE", "Extraction"]


class Extraction(Configured):
    """One level: out_t = Σ_e gate_te · expert_e over the experts of task t and the shared ones.

    Gates are softmax(input_t · W_t), W_t starting as zeros. The shared output mixes all experts by a gate of the shared
    input; the last level has none.

    Shapes: inputs of the tasks and the shared input (B, in); outputs (B, last width).

    >>> level = Extraction(2, [3], 1, 1, has_shared_output=False)
    >>> tasks, shared = level([torch.ones(4, 5)] * 2, torch.ones(4, 5))
    >>> [task.shape for task in tasks], shared
    ([torch.Size([4, 3]), torch.Size([4, 3])], None)
    """

    def __init__(
        self,
        num_tasks: int,
        output_dims: Sequence[int],
        num_shared_experts: int,
        num_task_experts: int,
        activations: ActivationLike | Sequence[ActivationLike] = None,
        initializers: InitializerLike | Sequence[InitializerLike] = None,
        has_shared_output: bool = True,
        **options: Unpack[MLPOptions],
    ) -> None:
        super().__init__()

        def experts(count: int) -> nn.ModuleList:
            return nn.ModuleList(MLP(output_dims, activations, initializers, **options) for _ in range(count))

        def gate(count: int) -> Dense:
            return Dense(count, "softmax", use_bias=False, kernel_initializer="zeros")

        self.task_experts = nn.ModuleList(experts(num_task_experts) for _ in range(num_tasks))
        self.shared_experts = experts(num_shared_experts)
        self.gates = nn.ModuleList(gate(num_task_experts + num_shared_experts) for _ in range(num_tasks))
        self.has_shared_output = has_shared_output
        if has_shared_output:
            self.gates.append(gate(num_tasks * num_task_experts + num_shared_experts))

    def forward(self, task_inputs: Sequence[Tensor], shared_input: Tensor) -> tuple[list[Tensor], Tensor | None]:
        """Return the output of each task, and the shared one."""
        shared = [expert(shared_input) for expert in self.shared_experts]
        own = [
            [expert(x) for expert in experts]  # type: ignore[attr-defined]
            for experts, x in zip(self.task_experts, task_inputs, strict=True)
        ]
        tasks = [
            _mixed(gate(x), [*outputs, *shared]) for gate, x, outputs in zip(self.gates, task_inputs, own, strict=False)
        ]
        if not self.has_shared_output:
            return tasks, None
        every = [output for outputs in own for output in outputs]
        return tasks, _mixed(self.gates[-1](shared_input), [*every, *shared])


def _mixed(gates: Tensor, outputs: list[Tensor]) -> Tensor:
    return torch.matmul(gates.unsqueeze(1), torch.stack(outputs, dim=1)).squeeze(1)


class PLE(Configured):
    """Progressive layered extraction: levels of :class:`Extraction`, each fed with the outputs of the previous level.

    Shapes: x (B, in); result a list of ``num_tasks`` tensors (B, last width of the last level).

    Args:
        num_tasks: How many tasks.
        level_output_dims: For each level, the widths of its experts.
        num_shared_experts: Experts of all tasks, per level.
        num_task_experts: Experts of each task, per level.
        expert_activations: Activations of :class:`monolith.layers.MLP` for every expert.
        expert_initializers: Initializers likewise.
        options: The other arguments of :class:`monolith.layers.MLP`, for the experts.

    >>> [task.shape for task in PLE(2, [[8], [4]])(torch.ones(5, 6))]
    [torch.Size([5, 4]), torch.Size([5, 4])]
    """

    def __init__(
        self,
        num_tasks: int,
        level_output_dims: Sequence[Sequence[int]],
        num_shared_experts: int = 1,
        num_task_experts: int = 1,
        expert_activations: ActivationLike | Sequence[ActivationLike] = None,
        expert_initializers: InitializerLike | Sequence[InitializerLike] = "glorot_uniform",
        **options: Unpack[MLPOptions],
    ) -> None:
        super().__init__()
        self.num_tasks = check_whole("PLE.num_tasks", num_tasks)
        check_whole("PLE.num_shared_experts", num_shared_experts)
        check_whole("PLE.num_task_experts", num_task_experts)
        if len(level_output_dims) == 0:
            raise ConfigError(
                "PLE.level_output_dims is empty; give the expert widths of each level, such as [[64], [32]]"
            )
        self.levels = nn.ModuleList(
            Extraction(
                num_tasks,
                check_dims("PLE.level_output_dims", dims),
                num_shared_experts,
                num_task_experts,
                expert_activations,
                expert_initializers,
                has_shared_output=level + 1 < len(level_output_dims),
                **options,
            )
            for level, dims in enumerate(level_output_dims)
        )

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return one tensor per task."""
        tasks, shared = [x] * self.num_tasks, x
        for level in self.levels:
            tasks, shared = level(tasks, shared)
        return tasks
