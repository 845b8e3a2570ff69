"""Training steps of a zoo model, with all that a planned step must leave as the plain one does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

import lowtide
from lowtide.measure.live import LiveBytes, storage_bytes
from zoo import MODELS, Case

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
STEPS = 3


@dataclass
class Trace:
    """What some training steps left behind.

    tensors   by name: losses, gradients, parameters and buffers after each step, and the generators' states
    peaks     measured bytes, step by step: everything the step held, the loss's own targets taken off
    """

    tensors: dict[str, torch.Tensor | None]
    peaks: list[int]

    def differences(self, other: Trace) -> list[str]:
        """Names of tensors that are not the same to the last bit."""
        assert self.tensors.keys() == other.tensors.keys()
        return [name for name, mine in self.tensors.items() if not same(mine, other.tensors[name])]


def same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    """Whether two tensors are the same, bit for bit (or both missing)."""
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and a.shape == b.shape and a.cpu().numpy().tobytes() == b.cpu().numpy().tobytes()


def case_of(name: str) -> Case:
    """The zoo's model on the device under test."""
    return MODELS[name]().to(DEVICE)


def optimizer_of(case: Case) -> torch.optim.Optimizer:
    """AdamW over what is trained."""
    return torch.optim.AdamW([p for p in case.model.parameters() if p.requires_grad], lr=1e-3)


def batch_of(case: Case) -> Any:
    """The case's batch as `lowtide.plan` takes it."""
    return lowtide.Batch(*case.args, **case.kwargs)


def train(case: Case, optimizer: torch.optim.Optimizer, steps: int = STEPS) -> Trace:
    """Some steps from a fixed seed, the output held all through as a training loop may."""
    torch.manual_seed(1)
    tensors: dict[str, torch.Tensor | None] = {}
    peaks = []
    for step in range(steps):
        with _Measured(case, optimizer) as measured:
            output = case.model(*case.args, **case.kwargs)
            loss = case.loss(output)
            loss.backward()
            gradients = {name: parameter.grad for name, parameter in case.model.named_parameters()}
            for place, leaf in enumerate(tree_leaves((case.args, case.kwargs))):
                if isinstance(leaf, torch.Tensor):
                    gradients[f"input {place}"] = leaf.grad
            optimizer.step()
        peaks.append(measured.peak)
        # Copies off the device, so that the steps to come have it to themselves.
        tensors[f"{step} loss"] = _copy(loss)
        for name, gradient in gradients.items():
            tensors[f"{step} gradient {name}"] = None if gradient is None else _copy(gradient)
        for name, tensor in case.model.state_dict().items():
            tensors[f"{step} state {name}"] = _copy(tensor)
        del output, loss, gradients
        optimizer.zero_grad()
        for leaf in tree_leaves((case.args, case.kwargs)):
            if isinstance(leaf, torch.Tensor):
                leaf.grad = None
    tensors["generator"] = torch.get_rng_state()
    if DEVICE.type == "cuda":
        tensors["device generator"] = torch.cuda.get_rng_state()
    return Trace(tensors, peaks)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True)


class _Measured:
    """The peak of a block in bytes, without the targets of the loss."""

    def __init__(self, case: Case, optimizer: torch.optim.Optimizer) -> None:
        self.beside = 0
        self.live: LiveBytes | None = None
        if DEVICE.type == "cpu":
            self.live = LiveBytes("cpu", holding=[case.model, optimizer, case.args, case.kwargs, case.targets])
            self.beside = storage_bytes(case.targets, "cpu")

    def __enter__(self) -> _Measured:
        if self.live is not None:
            self.live.__enter__()
        else:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live is not None:
            self.live.__exit__(*error)
            self.peak = self.live.peak - self.beside
        else:
            torch.cuda.synchronize()
            self.peak = torch.cuda.max_memory_allocated()
