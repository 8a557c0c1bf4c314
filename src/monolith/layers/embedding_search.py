"""Search for the width of each slot's embedding: each step draws one of several widths, and learns the draw.

See :class:`monolith.layers.IRazor` for a search that mixes widths in place of drawing one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from monolith.core.errors import ConfigError
from monolith.layers._arguments import check_last_dim, check_whole
from monolith.layers.initializers import RandomUniform, TruncatedNormal
from monolith.layers.layer import Layer, LossRecord

__all__ = ["MixedEmbedOpComb"]


class MixedEmbedOpComb(Layer):
    """Keeps the columns of one width per slot, drawn at each training step.

    The embedding of a slot holds one piece for each of its widths, side by side. w = softmax(arch_weights of the slot).
    A width i is drawn with probability w_i, or with equal probabilities during the first ``pretraining_steps`` steps.
    A width 0, which drops the slot, is not drawn during the first ``warmup_steps`` steps. The columns of the piece
    drawn are multiplied by 1 + w_i − stop_gradient(w_i), which is 1 and teaches w_i; all others become 0.
    In evaluation the likeliest width is taken.

    With a teacher, its embeddings are mapped by one dense layer per slot to the width of the slot's pieces, and the
    mean squared difference to the masked embedding is the layer loss ``distillation``.

    Shapes: x (B, Σ all widths of all slots), teacher (B, Σ teacher_embedding_sizes_list); result like x.

    Args:
        slot_names: Names of the slots, for :meth:`summaries`.
        embedding_size_choices_list: The widths to choose from, per slot; a width 0 comes first.
        warmup_steps: Steps before a width 0 may be drawn.
        pretraining_steps: Steps with equal probabilities.
        teacher_embedding_sizes_list: Width of the teacher's embedding, per slot; None for no teacher.
        distillation_mask: Whether the teacher is masked like the embedding before they are compared.

    >>> search = MixedEmbedOpComb(["user"], [[1, 3]], warmup_steps=0, pretraining_steps=0)
    >>> int(search(torch.ones(1, 4)).sum()) in (1, 3)
    True
    """

    arch_weights: Tensor
    teacher_kernel: Tensor
    teacher_bias: Tensor
    steps: Tensor

    def __init__(
        self,
        slot_names: Sequence[str],
        embedding_size_choices_list: Sequence[Sequence[int]],
        warmup_steps: int,
        pretraining_steps: int,
        teacher_embedding_sizes_list: Sequence[int] | None = None,
        distillation_mask: bool = False,
    ) -> None:
        super().__init__()
        self.slot_names = list(slot_names)
        self.choices = [_check_choices(slot, sizes) for slot, sizes in enumerate(embedding_size_choices_list)]
        if len(self.slot_names) != len(self.choices) or not self.choices:
            raise ConfigError(
                f"MixedEmbedOpComb has {len(self.slot_names)} slot_names and {len(self.choices)} lists of widths; "
                "give one list per slot, at least one"
            )
        self.warmup_steps = check_whole("MixedEmbedOpComb.warmup_steps", warmup_steps, at_least=0)
        self.pretraining_steps = check_whole("MixedEmbedOpComb.pretraining_steps", pretraining_steps, at_least=0)
        self.distillation_mask = distillation_mask
        self.widths = [sum(sizes) for sizes in self.choices]
        self.declare("arch_weights", RandomUniform(-1e-3, 1e-3))
        self.shape("arch_weights", sum(map(len, self.choices)))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.teacher_widths = self._check_teacher(teacher_embedding_sizes_list)
        if self.teacher_widths is not None:
            sizes = [teacher * width for teacher, width in zip(self.teacher_widths, self.widths, strict=True)]
            self.declare("teacher_kernel", TruncatedNormal(stddev=0.15))
            self.shape("teacher_kernel", sum(sizes))
            self.declare("teacher_bias", "zeros")
            self.shape("teacher_bias", sum(self.widths))
        self.settle()
        self._recorded = LossRecord()

    def forward(self, x: Tensor, teacher: Tensor | None = None) -> Tensor:
        """Mask the embedding; in training a step is counted."""
        check_last_dim("the input of MixedEmbedOpComb", x.shape[-1], sum(self.widths), "feed all pieces of all slots")
        if (teacher is None) != (self.teacher_widths is None):
            raise ConfigError("MixedEmbedOpComb needs a teacher if and only if it has teacher_embedding_sizes_list")
        mask = torch.cat([self._mask(slot, weights) for slot, weights in enumerate(self.probabilities())])
        if self.training:
            self.steps += 1
        masked = x * mask
        if teacher is not None:
            taught = self._transform(teacher)
            target = taught * mask if self.distillation_mask else taught
            # The mean over no examples is NaN.
            distance = F.mse_loss(masked, target) if len(masked) else (masked - target).sum()
            self._recorded.values = {"distillation": distance}
        return masked

    def probabilities(self) -> list[Tensor]:
        """Return softmax(arch_weights) of each slot, one number per width."""
        parts = torch.split(self.arch_weights, [len(sizes) for sizes in self.choices])
        return [torch.softmax(part, dim=0) for part in parts]

    def summaries(self) -> dict[str, Tensor]:
        """Return ``arch_entropy``, ``expected_emb_dims``, and ``<slot>_<width>`` for the probability of each width."""
        weights = self.probabilities()
        widths = [
            torch.tensor(sizes, dtype=w.dtype, device=w.device) for sizes, w in zip(self.choices, weights, strict=True)
        ]
        found = {
            "arch_entropy": -torch.cat([w * w.log() for w in weights]).sum(),
            "expected_emb_dims": torch.cat([w * width for w, width in zip(weights, widths, strict=True)]).sum(),
        }
        for name, sizes, w in zip(self.slot_names, self.choices, weights, strict=True):
            found |= {f"{name}_{size}": w[place] for place, size in enumerate(sizes)}
        return found

    def own_losses(self) -> dict[str, Tensor]:
        """Add the distance from the teacher in the last call."""
        return super().own_losses() | self._recorded.values

    def _mask(self, slot: int, weights: Tensor) -> Tensor:
        sizes = self.choices[slot]
        drawn = self._draw(weights.detach(), has_zero=sizes[0] == 0)
        chosen = weights[drawn]
        piece = torch.repeat_interleave(
            torch.arange(len(sizes), device=weights.device), torch.tensor(sizes, device=weights.device)
        )
        return (piece == drawn).to(weights.dtype) * (1 + (chosen - chosen.detach()))

    def _draw(self, weights: Tensor, *, has_zero: bool) -> Tensor:
        """The place of a width, as a tensor, so that no value leaves the device."""
        chances = (
            weights
            if not self.training
            else torch.where(self.steps < self.pretraining_steps, torch.full_like(weights, 1 / len(weights)), weights)
        )
        if has_zero and len(weights) > 1:
            first = torch.where(self.steps < self.warmup_steps, torch.zeros_like(chances[:1]), chances[:1])
            chances = torch.cat([first, chances[1:]])
        return torch.multinomial(chances, 1)[0] if self.training else chances.argmax()

    def _transform(self, teacher: Tensor) -> Tensor:
        assert self.teacher_widths is not None
        check_last_dim(
            "the teacher of MixedEmbedOpComb", teacher.shape[-1], sum(self.teacher_widths), "feed all its slots"
        )
        shapes = list(zip(self.teacher_widths, self.widths, strict=True))
        kernels = torch.split(self.teacher_kernel, [rows * columns for rows, columns in shapes])
        inputs = torch.split(teacher, self.teacher_widths, dim=-1)
        parts = [
            part @ kernel.reshape(rows, columns)
            for part, kernel, (rows, columns) in zip(inputs, kernels, shapes, strict=True)
        ]
        return torch.cat(parts, dim=-1) + self.teacher_bias

    def _check_teacher(self, widths: Sequence[int] | None) -> list[int] | None:
        if widths is None:
            return None
        checked = [check_whole("MixedEmbedOpComb.teacher_embedding_sizes_list", width) for width in widths]
        if len(checked) != len(self.choices):
            raise ConfigError(
                f"MixedEmbedOpComb.teacher_embedding_sizes_list has {len(checked)} widths for {len(self.choices)} "
                "slots; give one each"
            )
        return checked


def _check_choices(slot: int, sizes: Sequence[int]) -> list[int]:
    label = f"MixedEmbedOpComb.embedding_size_choices_list[{slot}]"
    checked = [check_whole(f"{label}[{place}]", size, at_least=0) for place, size in enumerate(sizes)]
    if not any(checked) or 0 in checked[1:]:
        raise ConfigError(f"{label} is {checked}; give at least one width above 0, and 0 only as the first")
    return checked
