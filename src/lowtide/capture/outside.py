"""What a training call records for backward outside the captured graphs.

Where the front end gives a frame up (a branch on data inside a loop, say), its operators run in plain PyTorch and save
what they like. That memory cannot be planned; it is found here, so that it is counted and said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from lowtide import _compat
from lowtide._compat import tree_leaves
from lowtide.errors import UnsupportedModel

_OURS = {"CompiledFunctionBackward", "_GradientPieceBackward", "_NotPlannedBackward", "torch::autograd::AccumulateGrad"}


@dataclass(frozen=True, slots=True)
class Outside:
    """Operators that ran outside the captured graphs and saved something for backward.

    counts   how many of each
    tensors  what they saved
    leaves   what they make gradients of
    """

    counts: dict[str, int]
    tensors: tuple[torch.Tensor, ...]
    leaves: tuple[torch.Tensor, ...] = ()

    def __str__(self) -> str:
        return ", ".join(f"{name} ({count})" for name, count in sorted(self.counts.items()))


def outside(output: Any) -> Outside:
    """What the autograd graph behind `output` holds that no captured graph does."""
    counts: Counter[str] = Counter()
    saved: list[torch.Tensor] = []
    leaves: list[torch.Tensor] = []
    for node in _nodes(output):
        if node.name() in _OURS:
            continue
        if node.name() == "CheckpointFunctionBackward" or _compat.saved_by_hooks(node):
            raise UnsupportedModel(
                f"{node.name()}: torch.compile's front end left a checkpoint (torch.utils.checkpoint, or other hooks "
                "on saved tensors) outside its graphs, so what it makes in backward cannot be planned. Take it out of "
                "the model: Lowtide chooses what to run again by itself."
            )
        leaves += [following.variable for following, _ in node.next_functions if hasattr(following, "variable")]
        mine = list(_saved(node))
        if mine:
            counts[node.name().removesuffix("0").removesuffix("Backward")] += 1
            saved += mine
    return Outside(dict(counts), tuple(saved), tuple(leaves))


def _nodes(output: Any) -> Iterator[Any]:
    leaves: Iterable[Any] = tree_leaves(output)
    waiting = [leaf.grad_fn for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        waiting += [following for following, _ in node.next_functions if following is not None]


def _saved(node: Any) -> Iterator[torch.Tensor]:
    names = [name for name in dir(node) if name.startswith("_saved_") or name == "saved_tensors"]
    for leaf in tree_leaves([getattr(node, name) for name in names]):
        if isinstance(leaf, torch.Tensor):
            yield leaf
