"""bound: the least time that any plan can take within a budget, proven without a plan."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from lowtide.plan import Bound
from lowtide.planners.prices import Proof, Relaxed
from lowtide.planners.promise import every_op_once
from lowtide.planners.step import Step
from lowtide.program import Program

INSTANTS = 12


def prove(program: Program, budget: int) -> Bound:
    """The least time of a step within `budget` bytes, over plans that run each backward op once and in order.

    It is the value of a linear program, proven in whole numbers from the prices that solve it
    (`prices.Relaxed.proof`); where no plan fits, it says nothing of that, and is the time of every op once.

    >>> from lowtide.program import Op, Phase, Role, Value
    >>> values = (Value("x", 4, Role.ACTIVATION), Value("y", 4, Role.ACTIVATION), Value("g", 4, Role.OUTPUT))
    >>> ops = (
    ...     Op("f", Phase.FORWARD, (), (0,), ns=5),
    ...     Op("h", Phase.FORWARD, (0,), (1,), ns=5),
    ...     Op("b", Phase.BACKWARD, (0, 1), (2,), ns=9),
    ... )
    >>> prove(Program(values, ops), 12).time
    19
    """
    step = Step.of(program)
    if not 0 < step.boundary < len(program.ops):
        return every_op_once(program)
    _, proof = narrowed(step, budget)
    return proof.at(budget)


def narrowed(step: Step, budget: int, dear: Collection[int] = ()) -> tuple[Relaxed, Proof]:
    """The relaxation that sees exactly the moments at which memory has a price, and what it proves.

    Which moments those are is only known once it is solved, so it is solved a few times; those that were `dear` at a
    budget nearby are a good beginning.
    """
    seen: set[int] = set(dear)
    proof = Proof(0, 0, every_op_once(step.program).time)
    relaxed = Relaxed.of(step, seen)
    while (prices := relaxed.solve(budget)) is not None:
        proof = max(proof, relaxed.proof(prices), key=lambda proof: proof.extra(budget))
        dearest = np.argsort(-prices.rent)[:INSTANTS]
        fresh = {int(t) for t in dearest if prices.rent[t] > 0} - seen - {0}
        if not fresh or len(seen) >= INSTANTS:
            break
        seen |= fresh
        relaxed = Relaxed.of(step, seen)
    return relaxed, proof
