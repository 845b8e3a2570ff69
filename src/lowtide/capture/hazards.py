"""What stands in the way of running an op again: randomness, hidden state, memory that was never written."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from lowtide._compat import HigherOrderOperator, OpOverload

# Kernels that are pure but for what they do to running statistics, by the positions of these among their arguments,
# and the position of the flag that says whether they are moved.
_STATISTICS = {
    "aten::native_batch_norm": ((3, 4), 5),
    "aten::cudnn_batch_norm": ((3, 4), 5),
    "aten::miopen_batch_norm": ((3, 4), 5),
}
# Kernels tagged as random that are only so with dropout, by the name and default of that argument.
_RANDOM_WITH_DROPOUT = "dropout_p"
_UNWRITTEN = {"aten::empty", "aten::empty_like", "aten::new_empty", "aten::empty_strided", "aten::new_empty_strided"}
# Kernels that overwrite their first argument without looking at what it holds.
_OVERWRITING = {
    "aten::bernoulli",
    "aten::cauchy",
    "aten::copy",
    "aten::exponential",
    "aten::fill",
    "aten::geometric",
    "aten::log_normal",
    "aten::normal_functional",
    "aten::random",
    "aten::uniform",
    "aten::zero",
}
# Forward kernels that add with atomics on CUDA, so that two runs may differ in the last bit.
_ATOMIC_ON_CUDA = {
    "aten::bincount",
    "aten::cumsum",
    "aten::histc",
    "aten::index_add",
    "aten::index_put",
    "aten::index_reduce",
    "aten::put",
    "aten::scatter_add",
    "aten::scatter_reduce",
}
# Operators of these libraries are functions of their arguments unless their tags or schemas say otherwise.
_PURE_NAMESPACES = {"aten", "prims", "torchvision"}


def moved_statistics(node: fx.Node) -> tuple[int, ...]:
    """Positions of the arguments that the kernel moves without saying so in its schema."""
    if not isinstance(node.target, OpOverload) or node.target._schema.name not in _STATISTICS:
        return ()
    positions, training = _STATISTICS[node.target._schema.name]
    if not node.args[training]:
        return ()
    return tuple(i for i in positions if isinstance(node.args[i], fx.Node))


def ignores_statistics(node: fx.Node) -> bool:
    """Whether the node is a batch norm's backward in training, which takes running statistics and leaves them be."""
    return isinstance(node.target, OpOverload) and node.target._schema.name in {
        "aten::native_batch_norm_backward",
        "aten::cudnn_batch_norm_backward",
        "aten::miopen_batch_norm_backward",
    }


def needs_grad_mode(node: fx.Node) -> bool:
    """Whether the kernel makes what its backward needs only while gradients are being recorded."""
    return str(node.target) == "aten.mkldnn_rnn_layer.default"


def is_random(node: fx.Node) -> bool:
    """Whether the node draws from a random generator."""
    target = node.target
    if not isinstance(target, OpOverload) or torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    if _argument(node, _RANDOM_WITH_DROPOUT, None) == 0.0:
        return False
    # The tag stands on native_dropout even where it does nothing.
    return not (target._schema.name == "aten::native_dropout" and node.args[1:] and node.args[1] == 0.0)


def has_own_generator(node: fx.Node) -> bool:
    """Whether the node draws from a generator that was handed to it."""
    return _argument(node, "generator", None) is not None


def why_once(node: fx.Node, kind: str) -> str:
    """Why the node must run exactly once on this kind of device; empty where it can be run again (randomness aside)."""
    target = node.target
    if isinstance(target, HigherOrderOperator):
        return f"{target.name()} is a higher-order operator, which is opaque"
    if not isinstance(target, OpOverload):
        return ""
    name = target._schema.name
    if target._schema.is_mutable:
        return f"{name} writes to its inputs"
    if name in _UNWRITTEN and not all(_overwrites(user, node) for user in node.users):
        return f"{name} returns memory that was never written, which differs from run to run"
    if name.startswith(("_c10d_functional::", "c10d::")):
        return f"{name} is a collective"
    if target.namespace not in _PURE_NAMESPACES:
        return f"{name} is a custom operator, which may hide state"
    if kind == "cuda" and name in _ATOMIC_ON_CUDA and not torch.are_deterministic_algorithms_enabled():
        return f"{name} adds in an order that varies from run to run on CUDA"
    return ""


def _overwrites(user: fx.Node, node: fx.Node) -> bool:
    """Whether a call takes a node only for its shape."""
    return (
        isinstance(user.target, OpOverload)
        and user.target._schema.name in _OVERWRITING
        and user.args[0] is node
        and node not in user.args[1:]
        # bernoulli without p takes its argument for probabilities.
        and (user.target._schema.name != "aten::bernoulli" or len(user.args) > 1)
    )


def _argument(node: fx.Node, name: str, default: Any) -> Any:
    """The value a call gives to the parameter of this name."""
    if name in node.kwargs:
        return node.kwargs[name]
    target = node.target
    assert isinstance(target, OpOverload)
    for position, parameter in enumerate(target._schema.arguments):
        if parameter.name == name:
            if position < len(node.args) and not parameter.kwarg_only:
                return node.args[position]
            return parameter.default_value if parameter.has_default_value() else default
    return default
