"""Which piece of storage every tensor of a joint graph lives in.

The tensors recorded while tracing are fake, but their storages are shared as the real ones will be: two nodes are views
of each other exactly where their recorded tensors share a storage.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from lowtide import _compat
from lowtide.errors import UnsupportedModel

# Kernels with a result whose size only the kernel knows: fake tensors give it as empty.
_SIZED_BY_KERNEL = {"aten.mkldnn_rnn_layer.default", "aten._cudnn_rnn.default"}


def tensors(node: fx.Node) -> Iterator[torch.Tensor]:
    """The tensors a node stands for, in order; none for what is no tensor."""
    yield from _tensors(node.meta.get("val"))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)


def _zeros(like: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device).zero_()


def key(tensor: torch.Tensor) -> int:
    """The identity of a tensor's storage."""
    if tensor.layout is not torch.strided:
        raise UnsupportedModel(
            f"a tensor of layout {tensor.layout} appears in the step; Lowtide plans dense tensors only "
            "(for nn.Embedding, use sparse=False)"
        )
    return int(tensor.untyped_storage()._cdata)


def keys(node: fx.Node) -> list[int]:
    """The storages a node's tensors live in, each once, in order."""
    return list(dict.fromkeys(key(tensor) for tensor in tensors(node)))


def sizes(node: fx.Node) -> dict[int, tuple[int, torch.device]]:
    """Bytes and device of each storage of a node."""
    found = {key(t): (int(t.untyped_storage().nbytes()), t.device) for t in tensors(node)}
    call = node.args[0] if node.target is operator.getitem else node
    if isinstance(call, fx.Node) and str(call.target) in _SIZED_BY_KERNEL:
        if "sizes" not in call.meta:
            call.meta["sizes"] = _sizes_by_kernel(call)
        return {identity: (call.meta["sizes"][identity], device) for identity, (_, device) in found.items()}
    return found


def _sizes_by_kernel(call: fx.Node) -> dict[int, int]:
    """Bytes of a call's results as its kernel really makes them, from a run on zeros."""
    with _compat.plain_tensors(), torch.enable_grad():
        args = fx.map_arg(call.args, lambda n: _zeros(n.meta["val"]))
        results = call.target(*args)
    return {
        key(fake): int(real.untyped_storage().nbytes())
        for fake, real in zip(call.meta["val"], results, strict=True)
        if isinstance(fake, torch.Tensor)
    }


def is_view(node: fx.Node) -> bool:
    """Whether a node makes no storage of its own: all its tensors live in those of its arguments."""
    if node.target is operator.getitem:
        return True
    mine = set(keys(node))
    if not mine:
        return False
    given = {k for argument in node.all_input_nodes for k in keys(argument)}
    shared = mine & given
    if shared and shared != mine:
        raise UnsupportedModel(
            f"{node.target} returns both a view of its input and new memory; Lowtide cannot tell its copies apart"
        )
    return bool(shared)
