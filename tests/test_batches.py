"""The largest batch within a budget: exact at the edge, and found in a few attempts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import lowtide
from lowtide.batches import Batches, BatchSize, search
from lowtide.errors import BudgetTooSmall, InvalidPlan, LowtideError, UnsupportedModel
from lowtide.plan import Bound, Plan


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def plan_of(peak: int, time: int) -> Plan:
    return Plan((), peak, peak, time, "best", "", "", Bound(0, ""), costs="made up")


@given(
    static=st.integers(0, 1000),
    slope=st.integers(1, 50),
    bumps=st.lists(st.integers(0, 200), min_size=1, max_size=7),
    room=st.integers(0, 20_000),
    most=st.integers(2, 500),
    points=st.integers(2, 20),
)
def test_the_edge_is_exact_where_more_samples_need_more(
    static: int, slope: int, bumps: list[int], room: int, most: int, points: int
) -> None:
    """Bytes rise with the size, evenly or in jumps; times are such that one size in the middle is fastest."""

    def need(size: int) -> int:
        return static + slope * size + sum(bump for i, bump in enumerate(bumps) if size > 9 * i)

    tries: list[int] = []

    def attempt(size: int, budget: int) -> BatchSize:
        tries.append(size)
        if need(size) > budget:
            raise BudgetTooSmall("", budget=budget, needed=need(size))
        return BatchSize(size, plan_of(need(size), 1000 + size * (size + 10)), 1000)

    budget = need(1) + room
    largest = max(size for size in range(1, most + 1) if need(size) <= budget)
    found = search(attempt, budget, points=points, most=most)
    assert found.largest == largest
    assert found.needed == (need(largest + 1) if largest < most else None)
    assert max(tries) <= most
    assert len(set(tries)) <= 2 * points + 30
    if largest <= points:
        assert [each.size for each in found.tried] == list(range(1, largest + 1))
        assert found.best == max(range(1, largest + 1), key=lambda size: size / (1000 + size * (size + 10)))


def test_a_line_finds_the_edge_at_once() -> None:
    """A hundred thousand samples, and a handful of attempts besides the curve's."""
    tries: list[int] = []

    def attempt(size: int, budget: int) -> BatchSize:
        tries.append(size)
        if 7 + 3 * size > budget:
            raise BudgetTooSmall("", budget=budget, needed=7 + 3 * size)
        return BatchSize(size, plan_of(7 + 3 * size, size + 5), size)

    assert search(attempt, 300_008, points=2, most=1 << 20).largest == 100_000
    assert len(tries) <= 14
    assert max(tries) == 100_001


MLP = nn.Sequential(*(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(3)))


CONVOLUTIONS = nn.Sequential(
    *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
    *(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
    *(nn.Flatten(), nn.Linear(8 * 16 * 16, 10)),
)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 16, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


MODELS: dict[str, tuple[nn.Module, tuple[int, ...], int]] = {
    "perceptron": (MLP, (32,), 230_000),
    "convolutions": (CONVOLUTIONS, (3, 16, 16), 700_000),
    "recurrent": (Recurrent(), (5, 8), 90_000),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_named_batch_fits_and_one_more_does_not(name: str) -> None:
    model, shape, budget = MODELS[name]
    optimizer = torch.optim.AdamW(model.parameters())
    buffers = [buffer.clone() for buffer in model.buffers()]
    state = torch.get_rng_state()
    found = lowtide.max_batch(
        lambda size: torch.randn(size, *shape), model, memory_budget=budget, optimizer=optimizer, points=2
    )
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(buffers, model.buffers()))
    assert found.largest > 3
    torch._dynamo.reset()
    for size, batch in ((found.largest, True), (found.largest + 1, False)):
        x = torch.randn(size, *shape)
        if batch:
            lowtide.fit(model, memory_budget=budget, batch=x, optimizer=optimizer)
        else:
            with pytest.raises(BudgetTooSmall) as error:
                lowtide.fit(model, memory_budget=budget, batch=x, optimizer=optimizer)
            assert error.value.needed == found.needed
    lowtide.unfit(model)
    assert found.best in {each.size for each in found.tried}


def test_it_prints_and_reads_back(tmp_path: Path) -> None:
    tried = BatchSize(1, plan_of(100, 1000), 1000), BatchSize(4, plan_of(400, 2000), 1600)
    found = Batches(450, tried, 500)
    assert str(found).splitlines() == [
        "   batch         peak  extra time    samples/s",
        "       1        100 B      0.00 %    1000000.0",
        "       4        400 B     25.00 %    2000000.0 best largest",
        "5 need 500 B; there are 450 B.",
        "Times are of forward and backward, made up.",
    ]
    assert "None larger was tried within 450 B." in str(Batches(450, tried, None))
    found.save(tmp_path / "batches")
    assert Batches.load(tmp_path / "batches") == found
    (tmp_path / "other").write_text('{"format": "something"}')
    with pytest.raises(InvalidPlan, match="something"):
        Batches.load(tmp_path / "other")


def test_what_cannot_be_searched_is_refused() -> None:
    def make(size: int) -> Tensor:
        return torch.randn(size, 32)

    with pytest.raises(BudgetTooSmall):
        lowtide.max_batch(make, MLP, memory_budget=1000)
    with pytest.raises(LowtideError, match="most=1"):
        lowtide.max_batch(make, MLP, memory_budget="1MiB", most=1)

    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            x = self.layer(x)
            torch._dynamo.graph_break()
            return self.layer(x)

    with pytest.raises(UnsupportedModel, match="several graphs"):
        lowtide.max_batch(make, Broken(), memory_budget="1MiB")
