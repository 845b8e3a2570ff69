"""What a training step holds besides its timeline: parameters, gradients, buffers, the batch, the optimizer's state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import nn

from lowtide._compat import tree_leaves
from lowtide.measure.allocated import allocated
from lowtide.measure.live import storage_bytes, tensors_of
from lowtide.measure.optimizer import OptimizerNeed, state_bytes
from lowtide.program import Program

# What nn.Module keeps in dictionaries of its own; parameters and buffers are counted as such.
_OWN = frozenset(vars(nn.Module()))


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes on the step's device, by what holds them.

    device       where the parameters are
    model        parameters, buffers and the batch
    gradients    gradients that are there when the call begins (they are being accumulated), else 0
    optimizer    what the optimizer holds and needs
    others       what is allocated for anything else on CUDA: other models, targets of the loss, the workspaces of
                 cuBLAS; below 0 by what the tensors above take less than they are charged
    known        the storages counted in `model`
    unplanned    what operators outside the captured graphs save for backward
    constants    tensors that are part of the captured graphs
    kind         "cuda" or "cpu": whose allocator counts
    margin       what steps were measured to take beyond their promise
    """

    device: torch.device
    model: int
    gradients: int
    optimizer: OptimizerNeed
    others: int
    known: frozenset[int]
    unplanned: int = 0
    constants: int = 0
    kind: str = "cpu"
    margin: int = 0

    @classmethod
    def now(
        cls, model: nn.Module, batch: Any, optimizer: torch.optim.Optimizer | None, kind: str | None = None
    ) -> Held:
        """What is held as a training call begins, before anything of its own is there; `kind` is that of the device
        that is planned for, where it is another than the model's.
        """
        parameters = list(model.parameters())
        device = next((p.device for p in parameters), torch.device("cpu"))
        kind = kind or device.type
        given = list(tensors_of([batch]))
        gradients = [t.grad for t in (*parameters, *given) if t.is_leaf and t.grad is not None]
        counted = {id(gradient) for gradient in gradients}
        given = [tensor for tensor in given if id(tensor) not in counted]
        everything = [*parameters, *model.buffers(), *attributes(model), *given]
        need = state_bytes(optimizer, kind=kind) if optimizer is not None else OptimizerNeed(0, 0)
        there = [everything, gradients, [] if optimizer is None else list(tensors_of(list(optimizer.state.values())))]
        return cls(
            device=device,
            model=storage_bytes(everything, device, kind=kind),
            gradients=storage_bytes(gradients, device, kind=kind),
            optimizer=need,
            others=allocated(device) - storage_bytes(chain(*there), device, kind=kind) if device.type == "cuda" else 0,
            kind=kind,
            known=frozenset(id(tensor.untyped_storage()) for tensor in everything),
        )

    def with_saved(self, tensors: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor] = ()) -> Held:
        """The same, with tensors counted that are saved outside the captured graphs, the gradients made there, and room
        for two gradients of the largest, which is what plain backward has at once.
        """
        new = [tensor for tensor in tensors if id(tensor.untyped_storage()) not in self.known]
        largest = max((storage_bytes([tensor], self.device, kind=self.kind) for tensor in new), default=0)
        made = storage_bytes(leaves, self.device, kind=self.kind)
        return replace(self, unplanned=storage_bytes(new, self.device, kind=self.kind) + 2 * largest + made)

    def with_constants(self, tensors: Iterable[torch.Tensor]) -> Held:
        """The same, with the constants of the captured graphs counted."""
        return replace(self, constants=storage_bytes(tensors, self.device, kind=self.kind))

    @property
    def static(self) -> int:
        """Bytes alive all through forward and backward."""
        held = self.model + self.gradients + self.optimizer.state + self.others + self.unplanned + self.constants
        return held + self.margin

    def after(self, program: Program) -> int:
        """Bytes at the peak of the optimizer's step, when the outputs and all gradients are still there."""
        return self.static + int(program.arrays.bytes[program.arrays.output].sum()) + self.optimizer.step_peak


def attributes(model: nn.Module) -> Iterator[torch.Tensor]:
    """The tensors that modules keep in plain attributes, from one step to the next."""
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor) or (isinstance(value, (list, tuple, dict)) and name not in _OWN):
                yield from (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


def attribute_bytes(model: nn.Module) -> int:
    """Bytes of those on the device of the parameters."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    return storage_bytes(attributes(model), device, kind=device.type)
