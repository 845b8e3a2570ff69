"""The bytes alive on a device while a block of code runs, counted by storage, from outside that code."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Self

import torch

from lowtide._compat import (
    FakeTensor,
    FakeTensorMode,
    FunctionalTensor,
    TorchDispatchMode,
    is_traceable_wrapper_subclass,
    tree_leaves,
)
from lowtide.allocator import charged


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of every storage that the ops of a `with` block touch, from its first sight to its death.

        with LiveBytes("cpu", holding=[model, optimizer, batch]) as live:
            step()
        live.peak, live.start, live.now

    start      bytes alive when the block began: those of `holding`
    now        bytes alive now; after the block, when it ended
    peak       the most that were alive while an op ran or just after it: its arguments and its results count together
    timeline   with `record`, the name of each op that was seen and the bytes alive after it

    Views share a storage and count once. A storage that exists before the block counts from `start` on if `holding`
    names it (modules give their parameters, buffers and gradients; optimizers their parameters, gradients and state;
    anything else is searched for tensors), otherwise from its first use. A resized storage counts what it has become.
    Only storages on `device`'s type count, whatever its index, each as an allocator of this `kind` of device charges
    for it. With `fake`, the tensors of that mode count and real ones do not; without, fake and functional tensors do
    not count.

    What is seen and what is not. Backward runs under the mode that was active when it was called, in the calling
    thread on the CPU and in autograd's own thread, with the mode carried over, on other devices. Storages that an op
    makes and frees inside itself (workspace, reordered weights) are not seen; nor are those made inside a compiled
    function by code other than ATen calls, as Inductor's is: of such a function its arguments and results count,
    and what it hands to autograd from the first op that meets it. Sparse tensors count their indices and values;
    tensors without a storage (MKL-DNN's) do not count. Compilation is not disturbed: what would be compiled is.
    """

    # Higher-order operators reach the mode like any other op instead of being refused.
    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Dynamo compiles under this mode as it would without it, with the mode off meanwhile."""
        return True

    def __init__(
        self,
        device: torch.device | str,
        *,
        holding: Iterable[Any] = (),
        kind: str = "cpu",
        record: bool = False,
        fake: FakeTensorMode | None = None,
    ) -> None:
        super().__init__()
        self.device = torch.device(device)
        self.start = self.now = self.peak = 0
        self.timeline: list[tuple[str, int]] = []
        self._kind = kind
        self._record = record
        self._fake = fake
        self._holding = list(holding)
        self._seen: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}

    def __enter__(self) -> Self:
        for tensor in tensors_of(self._holding):
            self._note(tensor)
        self._holding.clear()
        self.start = self.peak = self.now
        self._resize = torch.UntypedStorage.resize_
        torch.UntypedStorage.resize_ = _noted_resize(self, self._resize)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.UntypedStorage.resize_ = self._resize
        self._seen.clear()  # No death after the block changes `now`.

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # A wrapper subclass unwraps itself first; the ops on what it holds come back here.
        results = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, results)):  # The arguments after the call: it may have resized them.
            if isinstance(leaf, torch.Tensor):
                self._note(leaf)
        self.peak = max(self.peak, self.now)
        if self._record:
            self.timeline.append((str(func), self.now))
        return results

    def _note(self, tensor: torch.Tensor) -> None:
        for part in _parts(tensor):
            if part.device.type != self.device.type or not self._counts(part):
                continue
            try:
                storage = part.untyped_storage()
            except NotImplementedError:
                continue
            self._note_storage(storage)

    def _note_storage(self, storage: torch.UntypedStorage) -> None:
        key, size = id(storage), charged(storage.nbytes(), self._kind)
        known = self._seen.get(key)
        if known is None:
            self._seen[key] = weakref.ref(storage, lambda _: self._forget(key)), size
            self.now += size
        elif known[1] != size:
            self._seen[key] = known[0], size
            self.now += size - known[1]

    def _forget(self, key: int) -> None:
        _, size = self._seen.pop(key, (None, 0))
        self.now -= size

    def _counts(self, tensor: torch.Tensor) -> bool:
        if isinstance(tensor, FakeTensor):
            return tensor.fake_mode is self._fake
        return self._fake is None and not isinstance(tensor, FunctionalTensor)


def tensors_of(holders: Any) -> Iterator[torch.Tensor]:
    """The tensors that modules, optimizers and nested containers hold, gradients included; some may come twice."""
    for leaf in tree_leaves(holders):
        if isinstance(leaf, torch.nn.Module):
            found: list[Any] = [*leaf.parameters(), *leaf.buffers()]
        elif isinstance(leaf, torch.optim.Optimizer):
            found = [[group["params"] for group in leaf.param_groups], list(leaf.state.values())]
        else:
            found = [leaf]
        for tensor in tree_leaves(found):
            if isinstance(tensor, torch.Tensor):
                yield tensor
                if tensor.is_leaf and tensor.grad is not None:
                    yield tensor.grad


def storage_bytes(tensors: Iterable[torch.Tensor], device: torch.device | str, *, kind: str = "cpu") -> int:
    """Bytes of the storages behind `tensors` on `device`'s type, fake or not, each counted once, as an allocator of
    this `kind` of device charges for it.
    """
    parts = [part for tensor in tensors for part in _parts(tensor) if part.device.type == torch.device(device).type]
    storages = [part.untyped_storage() for part in parts]
    return sum({id(storage): charged(storage.nbytes(), kind) for storage in storages}.values())


def _parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors with a storage of their own of which `tensor` is made."""
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            yield from _parts(getattr(tensor, name))
    elif tensor.layout is torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    else:
        yield tensor


def _noted_resize(live: LiveBytes, resize: Any) -> Any:
    """`UntypedStorage.resize_` is no op, so no mode sees it; engines that shard parameters free storages with it."""

    def resize_(storage: torch.UntypedStorage, size: int) -> Any:
        result = resize(storage, size)
        if id(storage) in live._seen:
            live._note_storage(storage)
            live.peak = max(live.peak, live.now)
        return result

    return resize_
