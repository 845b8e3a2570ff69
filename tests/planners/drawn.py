"""Chains to test planners on, and a planner's answer as a value even where it is that nothing fits."""

from __future__ import annotations

import random
from collections.abc import Callable

from hypothesis import strategies as st

from lowtide.errors import BudgetTooSmall
from lowtide.planners.chain import Chain
from lowtide.planners.chain_replay import ChainPlan


def equal_chain(
    stages: int, *, value: int = 1, saved: int = 2, grad: int = 1, forward: int = 1, backward: int = 2
) -> Chain:
    """A chain whose stages are all alike, with no scratch."""
    return Chain(
        forward_ns=(forward,) * stages,
        backward_ns=(backward,) * stages,
        value_bytes=(value,) * (stages + 1),
        saved_bytes=(saved,) * stages,
        grad_bytes=(grad,) * (stages + 1),
        forward_scratch=(0,) * stages,
        backward_scratch=(0,) * stages,
    )


@st.composite
def chains(draw: st.DrawFn, most_stages: int = 4, most_bytes: int = 6) -> Chain:
    """Chains in which gradients differ from their values and from each other, with zeros, ties and scratch."""
    stages = draw(st.integers(0, most_stages))
    size = st.integers(0, most_bytes)

    def numbers(count: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(size, min_size=count, max_size=count)))

    values = numbers(stages + 1)
    return Chain(
        forward_ns=numbers(stages),
        backward_ns=numbers(stages),
        value_bytes=values,
        saved_bytes=tuple(value + beside for value, beside in zip(values[1:], numbers(stages))),
        grad_bytes=numbers(stages + 1),
        forward_scratch=numbers(stages),
        backward_scratch=numbers(stages),
        loss_scratch=draw(size),
    )


def uneven_chain(draw: random.Random, stages: int) -> Chain:
    """A chain in which most sizes are small and some are large."""

    def numbers(count: int) -> tuple[int, ...]:
        return tuple(draw.choice([0, 1, 2, 9]) for _ in range(count))

    values = numbers(stages + 1)
    saved = tuple(value + draw.choice([0, 0, 1, 5]) for value in values[1:])
    return Chain(
        forward_ns=tuple(draw.randint(0, 5) for _ in range(stages)),
        backward_ns=tuple(draw.randint(0, 5) for _ in range(stages)),
        value_bytes=values,
        saved_bytes=saved,
        grad_bytes=numbers(stages + 1),
        forward_scratch=numbers(stages),
        backward_scratch=numbers(stages),
        loss_scratch=draw.choice([0, 0, 9]),
    )


def attempt(solve: Callable[[Chain, int | None], ChainPlan], chain: Chain, budget: int) -> ChainPlan | BudgetTooSmall:
    """The plan, or the error that says which budget would do."""
    try:
        return solve(chain, budget)
    except BudgetTooSmall as error:
        return error
