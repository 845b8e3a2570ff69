"""What an optimizer will hold and need, worked out before its first step and without allocating it."""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from lowtide import _compat
from lowtide._compat import FakeCopyMode, FakeTensor, FakeTensorMode
from lowtide.errors import UnsupportedModel
from lowtide.measure.live import LiveBytes, storage_bytes, tensors_of


@dataclass(frozen=True, slots=True)
class OptimizerNeed:
    """Bytes an optimizer takes on its parameters' device.

    state       held from the first step on: the storages of its state
    step_peak   the most that one `step()` has alive beyond parameters, gradients and that state while it runs
    """

    state: int
    step_peak: int


# What an optimizer is told where it reads a number back, in its first step and in its second: numbers as of a young run
# and as of a long one; if its step fails on those, two that any step count has been.
ANSWERS = ((0.5, 1000.0), (1.0, 2.0))


def state_bytes(
    optimizer: torch.optim.Optimizer, *, unused: Iterable[torch.Tensor] = (), kind: str | None = None
) -> OptimizerNeed:
    """What `optimizer` holds after its next steps, and what a step needs while it runs.

    A twin of the optimizer, with the same options and the state it has by now, takes two steps on fake tensors (shapes
    without memory): in the first, state may be created, the second is like all later ones; the larger of the two
    counts. Nothing of the caller's changes, and hooks are not called. Every parameter that requires a gradient gets
    one of its own shape, strides and dtype, but for those in `unused`.

    Fake tensors have no numbers. Where the optimizer reads one back (a step count, a norm) it is told a small one in
    the first step and a large one in the second. That is exact where the number only scales something, or chooses
    between two ways as RAdam's step count does; an optimizer with further ways that other numbers lead to may need more
    than is said here. One whose step takes a closure, makes tensors whose shape depends on data, or fails on fake
    tensors is refused.

    Counted as `LiveBytes` counts: scratch inside an op is not seen. Every storage counts as an allocator of this `kind`
    charges for it, that of the parameters' device where none is given.
    """
    idle = frozenset(id(parameter) for parameter in unused)
    failure: Exception | None = None
    for answers in ANSWERS:
        try:
            return _trial(optimizer, idle, answers, kind)
        except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as e:
            failure = e
    kind = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
    raise UnsupportedModel(
        f"The memory of {kind} cannot be worked out before its first step: a step on tensors without data ends in "
        f"{type(failure).__name__}: {failure}. What works is an optimizer whose step takes no closure and makes "
        "no tensor whose shape depends on data."
    ) from failure


def _trial(
    optimizer: torch.optim.Optimizer, idle: frozenset[int], answers: tuple[float, float], kind: str | None
) -> OptimizerNeed:
    """The need when every number read back in the first of two steps is `answers[0]`, and in the second the other."""
    device = next(tensors_of([optimizer])).device
    kind = kind or device.type
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    twin, pairs = _twin(optimizer, fake)
    peaks = [0]
    with fake, _native_rule_on_fakes(original for _, original in pairs), _no_global_hooks():
        for parameter, original in pairs:
            trains = original.requires_grad and id(original) not in idle
            parameter.grad = torch.empty_like(parameter, requires_grad=False) if trains else None
        for answer in answers:
            with _StepBytes(device, holding=[twin], kind=kind, fake=fake) as live:
                live.answer = answer
                type(twin).step(twin)
            peaks.append(live.peak - storage_bytes(tensors_of([twin]), device, kind=kind))
    state = storage_bytes(tensors_of(list(twin.state.values())), device, kind=kind)
    return OptimizerNeed(state=state, step_peak=max(peaks))


class _StepBytes(LiveBytes):
    """Counts a step's fake tensors, and gives an answer where the step reads a number back."""

    answer = 1.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.ops.aten._local_scalar_dense.default:
            return super().__torch_dispatch__(func, types, args, kwargs)
        self._note(args[0])
        dtype = args[0].dtype
        if dtype is torch.bool:
            return self.answer > 1
        return self.answer if dtype.is_floating_point else math.ceil(self.answer)


def _twin(optimizer: torch.optim.Optimizer, fake: FakeTensorMode) -> tuple[Any, list[tuple[Any, torch.Tensor]]]:
    """The optimizer over again on fake tensors, and its parameters paired with the optimizer's own.

    It is built from the attributes, since a subclass may call for anything in its constructor. Hooks stay behind: what
    they do is not the optimizer's.
    """
    twin: Any = object.__new__(type(optimizer))
    kept = {name: value for name, value in vars(optimizer).items() if not name.endswith("_hooks")}
    with FakeCopyMode(fake):
        vars(twin).update(copy.deepcopy(kept, {id(optimizer): twin}))
    vars(twin).update({name: OrderedDict() for name in vars(optimizer) if name.endswith("_hooks")})
    pairs = [
        pair
        for mine, theirs in zip(twin.param_groups, optimizer.param_groups, strict=True)
        for pair in zip(mine["params"], theirs["params"], strict=True)
    ]
    return twin, pairs


@contextmanager
def _native_rule_on_fakes(originals: Iterable[torch.Tensor]) -> Iterator[None]:
    """Lets PyTorch choose between its loops over tensors and its foreach kernels as it will for the real parameters.

    The choice asks for the exact type of each parameter, and a fake one's is another. The list is changed in place:
    DTensor adds itself to it when it is first imported, which may be now.
    """
    native = _compat.native_parameter_types()
    chosen = all(type(parameter) in native for parameter in originals)
    if chosen:
        native.append(FakeTensor)
    try:
        yield
    finally:
        if chosen:
            native.remove(FakeTensor)


@contextmanager
def _no_global_hooks() -> Iterator[None]:
    """Keeps the hooks registered for the steps of all optimizers from being called."""
    registered = _compat.step_hooks_of_all_optimizers()
    kept = [dict(hooks) for hooks in registered]
    for hooks in registered:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, mine in zip(registered, kept, strict=True):
            hooks.update(mine)
