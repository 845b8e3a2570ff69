"""The front end goes the way of plain PyTorch, in one graph where it can."""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import lowtide
from test_uses import Fit, assert_same, batch, fitted, module, plain, step, tensors

LOG = logging.getLogger("a model")
_OF_THE_THREAD = contextvars.ContextVar("of the thread", default=1.0)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


def exact(build: Callable[[], nn.Module], *batches: tuple[Any, ...]) -> Any:
    """Steps on these batches in turn leave the same bits with and without a plan; what stood in for the call."""
    found: list[Any] = []

    def use(fit: Fit) -> list[Any]:
        model = fit(build(), None)
        torch.manual_seed(3)
        left: list[Any] = []
        for args in batches:
            model.zero_grad()
            left += [step(model, *args), *tensors(model)]
        found.append(fitted(model))
        return left

    expected = use(plain)
    assert_same(use(lambda model, _: lowtide.fit(model, memory_budget="1TB")), expected)
    return found[-1]


def graphs(said: pytest.LogCaptureFixture) -> int:
    """How many graphs the model was said to be."""
    lines = [line for line in said.messages if "lowtide: the model is" in line]
    return int(lines[-1].split()[4]) if lines else 1


def _asked() -> bool:
    """A function between, as libraries have."""
    return torch.compiler.is_compiling()


@pytest.mark.parametrize("ask", [torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling, _asked])
def test_a_model_that_asks_is_told_that_it_is_not_compiled(ask: Any, said: pytest.LogCaptureFixture) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.body(x)
        return self.head(y * 2 if ask() else y)

    exact(lambda: module(forward), (batch(),))
    assert graphs(said) == 1
    assert not [line for line in said.messages if "being compiled" in line]


def _shared_factor() -> float:
    """What the front end cannot read, and code that asks does without."""
    return 1.0 if _asked() else _OF_THE_THREAD.get()


def test_where_the_plain_way_cannot_be_traced_the_model_is_told_that_it_is(said: pytest.LogCaptureFixture) -> None:
    """Only there: the other question is still answered with no."""

    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.body(x) * (2.0 if _asked() else 1.0)
        return self.head(y * _shared_factor())

    exact(lambda: module(forward), (batch(),), (batch(32),))
    assert graphs(said) == 1
    told = [line for line in said.messages if "being compiled" in line]
    assert len(told) == 1
    assert "_shared_factor" in told[0]


def test_a_question_beside_a_branch_on_data_is_answered_with_no(said: pytest.LogCaptureFixture) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.body(x)
        if not torch.compiler.is_compiling() and bool(y.mean() > 0):
            y = y * 2
        return self.head(y)

    exact(lambda: module(forward), (batch(),), (batch(seed=2),))
    assert graphs(said) > 1


def masked(self: Any, x: Tensor, mask: Tensor | None) -> Tensor:
    """As language models do: a mask that masks nothing is left out, which rounds otherwise."""
    y = self.body(x).view(4, 16, 8)
    positions = torch.arange(16, device=x.device)
    in_order = (positions.diff() == 1).all()
    if mask is None or mask.all():
        y = y + functional.scaled_dot_product_attention(y, y, y, is_causal=True)
    elif in_order:
        y = y + functional.scaled_dot_product_attention(y, y, y, attn_mask=mask[:, None, :].expand(4, 16, 16))
    return self.head(y * 3 if in_order else y)


def test_branches_on_masks_and_positions_are_decided_and_looked_at_again(said: pytest.LogCaptureFixture) -> None:
    nothing, something = torch.ones(4, 16, dtype=torch.bool), torch.ones(4, 16, dtype=torch.bool)
    something[1, 9:] = False
    masks = [nothing, something, nothing.clone(), None, something.clone()]
    made = exact(lambda: module(masked), *((batch(), mask) for mask in masks))
    assert graphs(said) == 1
    assert made._traces == 3


@pytest.mark.parametrize("through", [lambda flags: flags, lambda flags: flags.view(1, -1)[0]])
def test_a_branch_on_what_was_written_to_is_not_decided(through: Any, said: pytest.LogCaptureFixture) -> None:
    def forward(self: Any, x: Tensor, flag: Tensor) -> Tensor:
        y = self.body(x)
        flags = flag.logical_not()
        through(flags)[0] = True
        if flags.all():
            y = y * 2
        return self.head(y)

    exact(lambda: module(forward), (batch(), torch.tensor([True, False])), (batch(), torch.tensor([True, True])))
    assert graphs(said) > 1


def test_a_branch_on_random_numbers_is_not_decided(said: pytest.LogCaptureFixture) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.body(x)
        return self.head(y * 2 if torch.randint(2, ()) else y)

    exact(lambda: module(forward), *([(batch(),)] * 4))
    assert graphs(said) > 1


def test_positions_are_known_on_the_meta_device(said: pytest.LogCaptureFixture) -> None:
    with torch.device("meta"):
        model = module(masked)
    assert lowtide.plan(model, (batch().to("meta"), None), memory_budget="1TB").total > 0
    assert graphs(said) == 1


def test_calls_of_loggers_do_not_end_the_graph(said: pytest.LogCaptureFixture) -> None:
    """Each line appears in every call, with what it was called with then."""

    class Talking(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            LOG.warning("%d rows of %s", x.shape[0], x.dtype)
            LOG.debug("never seen")
            return x * 2

    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.talking(self.body(x))
        LOG.info(f"a mean over {len(y)}")
        return self.head(y)

    def build() -> nn.Module:
        made = module(forward)
        made.talking = Talking()
        return made

    exact(build, (batch(),), (batch(),), (batch(32),))
    assert graphs(said) == 1
    lines = [record.getMessage() for record in said.records if record.name == "a model"]
    each = [f"{rows} rows of torch.float32" for rows in (64, 64, 32)], [f"a mean over {rows}" for rows in (64, 64, 32)]
    assert lines == [line for pair in zip(*each, strict=True) for line in pair] * 2


def test_a_logger_called_with_a_tensor_ends_the_graph(said: pytest.LogCaptureFixture) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.body(x)
        LOG.info("%s", y.detach().sum())
        return self.head(y)

    exact(lambda: module(forward), (batch(),))
    lines = [record.getMessage() for record in said.records if record.name == "a model"]
    assert len(lines) == 2
    assert lines[0] == lines[1]
    assert graphs(said) > 1


@pytest.mark.parametrize("uses", [1, 2])
def test_gradients_that_graphs_add_up_each_by_itself_are_told_of(uses: int, said: pytest.LogCaptureFixture) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.body(x)
        torch._dynamo.graph_break()
        z = y.cos() if uses == 1 else y.sin() * y.cos()
        torch._dynamo.graph_break()
        return self.head(y + z)

    model = lowtide.fit(module(forward), memory_budget="1TB")
    for _ in range(2):
        step(model, batch())
    assert sum("graph by graph" in line for line in said.messages) == uses - 1


def test_grouped_products_in_single_precision(said: pytest.LogCaptureFixture) -> None:
    """PyTorch's kernels take them; what gives their shapes while tracing does not."""

    def forward(self: Any, x: Tensor) -> Tensor:
        rows = torch.tensor([16, 40, 64], dtype=torch.int32)
        y = torch._grouped_mm(self.body(x), torch.stack([self.head.weight] * 3), offs=rows)
        return y + y.tanh()

    exact(lambda: module(forward), (batch(),))
    assert graphs(said) == 1
