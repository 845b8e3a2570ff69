"""A loss that the model works out itself: its other outputs then get no gradient, and none is planned for them.

AOTAutograd takes it that every output will get a gradient. For a language model that returns its logits beside its
loss that costs a tensor of zeros as large as the logits, and an addition. Where the loss is inside, the other outputs
are cut from the graph; should a gradient arrive at one all the same, it is an error and not a wrong number.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from lowtide.errors import UnsupportedModel

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


class _NotPlanned(torch.autograd.Function):
    """Passes outputs on as they are; a gradient that comes back is an error."""

    @staticmethod
    def forward(ctx: Any, _: torch.Tensor, *outputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.shapes = [tuple(output.shape) for output in outputs]
        return tuple(output.view_as(output) for output in outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise UnsupportedModel(
            f"a gradient arrived at an output of shape {ctx.shapes[0]}, but the step was planned as one whose loss is "
            "worked out inside the model. Fit the model with loss_inside=False: then every output may get a gradient."
        )


class _Once(torch.autograd.Function):
    """Passes gradients on as they are; a gradient of theirs is an error."""

    @staticmethod
    def forward(ctx: Any, _: torch.Tensor, *gradients: Any) -> Any:
        return tuple(g.view_as(g) if isinstance(g, torch.Tensor) else g for g in gradients)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise UnsupportedModel(
            "double backward: a gradient of a fitted model's gradients was asked for (create_graph=True, a gradient "
            "penalty, a Hessian), and a planned step has none. lowtide.unfit(model) takes Lowtide away for such steps."
        )


def refuse_double_backward(gradients: Any) -> Any:
    """The gradients of a step, through which no gradient flows back."""
    return _Once.apply(torch.empty(0, requires_grad=True), *gradients)


def assume_loss_inside(graph: fx.GraphModule, inside: bool | None) -> tuple[fx.GraphModule, Wrap]:
    """The graph with outputs other than the loss cut off from autograd, and what restores them around its callable.

    An output that is a single number and wants a gradient is taken for a loss, unless `inside` is False.
    """
    output = graph.graph.find_nodes(op="output")[0]
    results = list(output.args[0])
    losses = [i for i, node in enumerate(results) if _is_number(node)]
    others = [i for i, node in enumerate(results) if _wants_gradient(node) and not _is_number(node)]
    if inside is False or not losses or not others:
        return graph, lambda compiled: compiled
    cut = fx.GraphModule(graph, copy.deepcopy(graph.graph))
    output = cut.graph.find_nodes(op="output")[0]
    results = list(output.args[0])
    with cut.graph.inserting_before(output):
        for i in others:
            results[i] = cut.graph.call_method("detach", (results[i],))
    output.args = (tuple(results),)
    cut.recompile()
    return cut, lambda compiled: _restore(compiled, others)


def _restore(compiled: Callable[..., Any], others: Sequence[int]) -> Callable[..., Any]:
    def run(*inputs: Any) -> Any:
        outputs = list(compiled(*inputs))
        anchor = torch.empty(0, requires_grad=True)
        passed = _NotPlanned.apply(anchor, *(outputs[i] for i in others))
        for i, output in zip(others, passed, strict=True):
            outputs[i] = output
        return outputs

    return run


def _wants_gradient(node: Any) -> bool:
    example = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return isinstance(example, torch.Tensor) and example.requires_grad


def _is_number(node: Any) -> bool:
    return _wants_gradient(node) and node.meta["example_value"].numel() == 1
