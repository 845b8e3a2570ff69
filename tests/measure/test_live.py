"""Live bytes against numbers worked out by hand, against PyTorch's profiler, and with and without torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

from lowtide.measure.allocated import peak_of
from lowtide.measure.live import LiveBytes, storage_bytes, tensors_of

N = 1000  # Float32 elements in most tensors below: 4,000 bytes each.


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def test_a_chain_of_sums() -> None:
    """Three of 4,000 bytes at once; the first sum dies when the second is there."""
    with LiveBytes("cpu", record=True) as live:
        x = torch.ones(N)
        y = x + 1
        del x
        y = y + 1
        assert live.now == 4000
    assert (live.start, live.peak, live.now) == (0, 8000, 4000)
    assert live.timeline == [("aten.ones.default", 4000), ("aten.add.Tensor", 8000), ("aten.add.Tensor", 8000)]


def test_what_is_held_counts_from_the_start_and_the_rest_from_its_first_use() -> None:
    x, y = torch.ones(N), torch.ones(2 * N)
    with LiveBytes("cpu", holding=[{"batch": (x, x.view(10, 100))}]) as live:
        assert live.now == 4000
        z = y[:N] + x
        assert live.now == 4000 + 8000 + 4000
    del z
    assert (live.start, live.peak, live.now) == (4000, 16000, 16000)


def test_a_view_counts_with_its_base_and_keeps_it() -> None:
    with LiveBytes("cpu") as live:
        x = torch.ones(10, 100)
        part = x.t()[3:4]
        assert live.now == 4000
        del x
        assert live.now == 4000
        del part
        assert live.now == 0


def test_in_place_adds_nothing() -> None:
    with LiveBytes("cpu") as live:
        x = torch.ones(N)
        x.add_(1).mul_(2)
        x[5:].zero_()
    assert live.peak == live.now == 4000


def test_resizing() -> None:
    """The op is seen as an op; the storage's own method is no op, and is restored afterwards."""
    plain = torch.UntypedStorage.resize_
    with LiveBytes("cpu") as live:
        x = torch.ones(N)
        x.resize_(3 * N)
        assert live.now == 12000
        x.untyped_storage().resize_(0)
        assert live.now == 0
        x.untyped_storage().resize_(8000)
        assert live.now == 8000
        torch.ops.inductor.resize_storage_bytes_(x, 400)  # Returns nothing: only the argument shows it.
        assert live.now == 400
    assert (live.peak, live.now) == (12000, 400)
    assert torch.UntypedStorage.resize_ is plain


def test_storages_are_rounded_up_to_the_unit() -> None:
    with LiveBytes("cpu", kind="cuda") as live:
        x = torch.ones(N)
        x.untyped_storage().resize_(1)
    assert (live.peak, live.now) == (4096, 512)
    assert storage_bytes([x, x], "cpu", kind="cuda") == 512


def test_what_autograd_saves_is_alive_until_backward_has_used_it() -> None:
    """exp saves its result, sin its argument: both outlive their names, and backward lets go of them one by one."""
    x = torch.ones(N, requires_grad=True)
    with LiveBytes("cpu", holding=[x]) as live:
        loss = x.exp().sin().sum()
        assert live.now == 4000 + 4000 + 4  # x, exp's result (saved by both), the loss; sin's result is gone
        assert live.peak == 4000 + 4000 + 4000 + 4
        loss.backward()
        # Peak: x, exp's result, loss, its gradient (expanded, 4 bytes), cos of exp's result, the product.
        assert live.peak == 4 * 4000 + 8
        assert live.now == 4000 + 4 + 4000  # x, the loss, x.grad
    del loss
    assert live.now == 8004


def test_deaths_count_in_the_block_only() -> None:
    x = torch.ones(N)
    with LiveBytes("cpu", holding=[x]) as live:
        del x
        assert live.now == 0
        y = torch.ones(N)
    del y
    assert live.now == 4000


def test_an_exception_leaves_the_counts_and_nothing_else() -> None:
    plain = torch.UntypedStorage.resize_
    live = LiveBytes("cpu")

    def fail() -> None:
        with live:
            x = torch.ones(10, 100)
            x @ x

    with pytest.raises(RuntimeError, match="shape"):
        fail()
    assert live.peak == 4000
    assert torch.UntypedStorage.resize_ is plain
    torch.ones(N)
    assert live.peak == 4000


def test_nested_blocks_count_each_for_itself() -> None:
    with LiveBytes("cpu") as outer:
        x = torch.ones(N)
        with LiveBytes("cpu", holding=[x]) as inner:
            y = x + 1
        del y
    assert (inner.start, inner.peak, outer.peak, outer.now) == (4000, 8000, 8000, 4000)


def test_another_device_does_not_count() -> None:
    with LiveBytes("cpu") as cpu, LiveBytes("meta") as meta:
        x, y = torch.ones(N, device="meta"), torch.ones(2 * N)
    assert (x.numel(), y.numel()) == (N, 2 * N)
    assert (cpu.peak, meta.peak) == (8000, 4000)


def test_sparse_tensors_count_what_they_hold() -> None:
    with LiveBytes("cpu") as live:
        x = torch.sparse_coo_tensor(torch.tensor([[0, 5, 9]]), torch.ones(3), (N,), check_invariants=False)
        assert live.now == storage_bytes([x], "cpu") == 3 * 8 + 3 * 4


def test_a_wrapper_subclass_counts_what_it_wraps() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    with LiveBytes("cpu", record=True) as live:
        x = TwoTensor(torch.ones(N), torch.ones(N))
        y = x + 1
        assert live.now == storage_bytes([x, y], "cpu") == 16000
    assert live.timeline[-2:] == [("aten.add.Tensor", 12000), ("aten.add.Tensor", 16000)]


def test_modules_and_optimizers_give_all_they_hold() -> None:
    model = nn.Sequential(nn.Linear(10, 10), nn.BatchNorm1d(10))
    optimizer = torch.optim.Adam(model.parameters())
    static = 4 * (100 + 10 + 10 + 10) + 4 * (10 + 10) + 8
    assert storage_bytes(tensors_of([model]), "cpu") == static
    model(torch.ones(4, 10)).sum().backward()
    optimizer.step()
    gradients, state = 4 * 130, 8 * 130 + 4 * 4
    assert storage_bytes(tensors_of([model, optimizer]), "cpu") == static + gradients + state


def test_higher_order_operators_are_seen() -> None:
    from torch._prims.rng_prims import run_and_save_rng_state

    x = torch.ones(N)
    with LiveBytes("cpu", holding=[x]) as live:
        state, y = run_and_save_rng_state(torch.ops.aten.rand_like.default, x)
    assert live.peak == x.nbytes + y.nbytes + state.nbytes


def _product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (x @ weight).relu().sum()


@pytest.mark.parametrize("compiled", [False, True])
def test_a_step_by_hand(compiled: bool) -> None:
    """x is 10 x 20, the weight 20 x 30, so 800 and 2,400 bytes are held and a product takes 1,200.

    forward    x, weight, product, relu: 5,600 at most; saved: relu's result; and the loss, 4
    backward   x, weight, relu's result, loss, its gradient (4), relu's gradient; then relu's result goes (the Python
               call that made the gradient has returned) and the weight's gradient comes:
               800 + 2,400 + 4 + 4 + 1,200 + 2,400
    """
    x, weight = torch.randn(10, 20), nn.Parameter(torch.randn(20, 30))
    counter = CompileCounterWithBackend("aot_eager")
    step: Callable[..., Any] = torch.compile(_product, backend=counter) if compiled else _product
    for _ in range(2):  # The first call compiles under the mode; what compiling makes must not count.
        weight.grad = None
        with LiveBytes("cpu", holding=[x, weight]) as live:
            loss = step(x, weight)
            assert (live.peak, live.now) == (5600, 4404)
            loss.backward()
        assert (live.start, live.peak, live.now) == (3200, 6808, 3200 + 4 + 2400)
    assert counter.frame_count == int(compiled)


def test_compiled_code_runs_as_compiled_under_the_mode() -> None:
    """Compiled before, called in a block: the same graph, no second compilation, no falling back to eager."""
    calls = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            calls.append(len(args))
            return graph(*args)

        return run

    step = torch.compile(lambda x: x.sin().cos(), backend=backend)
    x = torch.ones(N)
    step(x)
    with LiveBytes("cpu", holding=[x]) as live:
        step(x)
    assert calls == [1, 1]
    assert live.peak == 12000


def test_recomputation_is_seen() -> None:
    """Eight layers keep eight results, two checkpoints one, and rebuild the four of one at a time; either way the loss
    and its gradient, 8 bytes, and at most x and one gradient more at once.
    """
    layers = [nn.Sequential(*(nn.Tanh() for _ in range(4))) for _ in range(2)]

    def step(*, rebuild: bool) -> int:
        x = torch.ones(N, requires_grad=True)

        def run() -> None:
            y = x
            for layer in layers:
                y = checkpoint(layer, y, use_reentrant=False) if rebuild else layer(y)
            loss = y.sum()
            del y
            loss.backward()

        return peak_of("cpu", run, holding=[x])

    assert step(rebuild=False) == 4000 * (1 + 8 + 1) + 8
    assert step(rebuild=True) == 4000 * (1 + 1 + 4 + 1) + 8


def test_against_the_profiler() -> None:
    """The CPU allocator's own count of a convolutional step is ours plus what ops use inside themselves (oneDNN's
    reordered weights and inputs): never less, and after the step the same to the byte.
    """
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 256, 10)),
    )
    batch = torch.randn(8, 3, 16, 16)

    def step() -> None:
        model(batch).square().sum().backward()

    step()
    model.zero_grad()
    with LiveBytes("cpu", holding=[model, batch]) as live:
        step()
    model.zero_grad()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    now = peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    assert now == live.now - live.start
    assert live.peak - live.start <= peak <= 1.1 * (live.peak - live.start)
