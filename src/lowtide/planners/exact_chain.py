"""The fastest plan of all for a chain within a budget, by search over what memory holds."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import NamedTuple

from lowtide.errors import BudgetTooSmall, InvalidProblem
from lowtide.planners.chain import Chain
from lowtide.planners.chain_replay import ChainPlan, replay

MOST_STAGES = 12


def solve(chain: Chain, budget: int | None) -> ChainPlan:
    """Fastest plan whose peak, a^0 included, is at most `budget` bytes (None: no limit).

    Over all plans: any run whose needs are met (see `chain_replay.replay`), any stored value dropped at any time.
    Shortest path from {a^0} to {δ^0} over states (d, A, S): stages above d are reversed, the values a^l with l in A
    and the records ā^l with l in S are held. An A* search; the bound on what remains is exact but for reruns:

        h(d, A, S) = sum of b_l over l <= d  +  sum of f_l over l <= d not in S

    Four things are decided without search, and lose nothing. The loss and every B run once: whatever led to a
    gradient that is dropped and made again could be left out. What only stages above d could read is gone. A value is
    dropped only just before a run that does not fit, and no more than it asks for: holding never hurts before that.
    And if |ā^l| >= |a^l|, ā^l is kept until B l, and a^l is not held beside it: a record dropped earlier served as a^l
    only, and F_ck l would have made that. a^0 is never dropped, since nothing can make it again.
    Time and memory grow like 3^L in the worst case, so chains longer than MOST_STAGES are refused.
    Ref: the optimum that Beaumont et al. 2019, arXiv 1911.13214, approach by persistent plans.
    """
    if chain.stages > MOST_STAGES:
        raise InvalidProblem(
            f"forward_ns: {chain.stages} stages, but the exact search takes at most {MOST_STAGES}", "forward_ns"
        )
    search = _Search(chain)
    if budget is None:
        budget = sum(search.value) + sum(search.saved) + sum(search.grad) + sum(search.forward_scratch)
        budget += sum(search.backward_scratch)
    runs = search.fastest(budget)
    if runs is None:
        tightest = replay(chain, search.tightest())
        raise BudgetTooSmall(
            f"no plan fits in {budget} bytes: this chain of {chain.stages} stages needs at least {tightest.peak}. "
            f"The narrowest place is {tightest.at}. Raise the budget to {tightest.peak}, or make that stage smaller.",
            budget=budget,
            needed=tightest.peak,
        )
    seen = replay(chain, runs)
    return ChainPlan(seen.time, seen.peak, tuple(runs), optimal=True)


class State(NamedTuple):
    """What memory holds: the gradient δ^d (none yet for d = L + 1), values and records as sets of bits, bit l for l."""

    d: int
    A: int
    S: int


class Move(NamedTuple):
    """One run from a state.

    sheds    values dropped before it, by bits, since what it makes contains them
    reads    the run takes a^reads from where it is held, plain or in ā^reads
    record   the record that it uses up, or 0
    during   bytes held meanwhile
    after    the state that it leaves
    """

    run: str
    ns: int
    sheds: int
    reads: int
    record: int
    during: int
    after: State


Parents = dict[State, tuple[State, tuple[str, ...]] | None]


class _Search:
    """The chain with its loss as a last stage that records nothing, and the two searches over its states."""

    def __init__(self, chain: Chain) -> None:
        self.L = chain.stages
        self.forward = (0, *chain.forward_ns, 0)
        self.backward = (0, *chain.backward_ns, 0)
        self.value = chain.value_bytes
        self.saved = (0, *chain.saved_bytes, 0)
        self.grad = (*chain.grad_bytes, 0)
        self.forward_scratch = (0, *chain.forward_scratch, 0)
        self.backward_scratch = (0, *chain.backward_scratch, chain.loss_scratch)
        self.start = State(self.L + 1, 1, 0)
        # Bit l: ā^l is at least as large as a^l, so it is never dropped for its sake.
        self.firm = sum(1 << l for l in range(1, self.L + 1) if self.saved[l] >= self.value[l])
        self.known_drops: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
        self.value_sum = _subset_sums(self.value)
        self.saved_sum = _subset_sums(self.saved[: self.L + 1])
        self.forward_sum = _subset_sums(self.forward[: self.L + 1])

    def held(self, state: State) -> int:
        return self.value_sum[state.A] + self.saved_sum[state.S] + self.grad[state.d]

    def remaining(self, state: State) -> int:
        """h: a bound on the time still to come."""
        unsaved = ~state.S & ((2 << min(state.d, self.L)) - 1)
        return sum(self.backward[: state.d + 1]) + self.forward_sum[unsaved]

    def moves(self, state: State) -> Iterator[Move]:
        """Every run whose needs are met and that is not pointless."""
        d, A, S = state
        held = self.held(state)
        for l in range(1, min(d, self.L) + 1):
            if not (A | S) >> (l - 1) & 1 or S & self.firm & 1 << l:
                continue
            bit, during = 1 << l, held + self.forward_scratch[l]
            if not S & bit:
                sheds = A & bit & self.firm
                full = during + self.saved[l] - self.value_sum[sheds]
                yield Move(f"F_all {l}", self.forward[l], sheds, l - 1, 0, full, State(d, A & ~sheds, S | bit))
            if l < d and not A & bit:
                yield Move(f"F_ck {l}", self.forward[l], 0, l - 1, 0, during + self.value[l], State(d, A | bit, S))
        if (A | S) >> (d - 1) & 1 and (d > self.L or S >> d & 1):
            during = held + self.grad[d - 1] + self.backward_scratch[d]
            after = State(d - 1, A & (1 << d - 1) - 1, S & (1 << d) - 1)
            if d > self.L:
                yield Move("loss", 0, 0, d - 1, 0, during, after)
            else:
                yield Move(f"B {d}", self.backward[d], 0, d - 1, d, during, after)

    def fastest(self, budget: int) -> list[str] | None:
        """The runs of least time within the budget, or None if there are none: A*."""
        if self.held(self.start) > budget:
            return None
        time = {self.start: 0}
        parents: Parents = {self.start: None}
        queue = [(self.remaining(self.start), self.start)]
        while queue:
            bound, state = heappop(queue)
            now = time[state]
            if bound > now + self.remaining(state):
                continue
            if state.d == 0:
                return _path(parents, state)
            for move in self.moves(state):
                for words, after in self.thinned(state, move, move.during - budget):
                    then = now + move.ns
                    if then < time.get(after, then + 1):
                        time[after] = then
                        parents[after] = (state, words)
                        heappush(queue, (then + self.remaining(after), after))
        return None

    def thinned(self, state: State, move: Move, excess: int) -> Iterator[tuple[tuple[str, ...], State]]:
        """Each way of dropping no more than the move needs so as to save `excess` bytes, and the state afterwards."""
        for gone_A, gone_S in self.drops(state.A & ~(move.sheds | 1), state.S & ~self.firm, max(excess, 0)):
            A, S = state.A & ~gone_A, state.S & ~gone_S
            if (A | S) >> move.reads & 1 and (not move.record or S >> move.record & 1):
                after = State(move.after.d, move.after.A & ~gone_A, move.after.S & ~gone_S)
                yield _words(move, gone_A, gone_S), after

    def drops(self, A: int, S: int, excess: int) -> list[tuple[int, int]]:
        """The smallest sets of values within A and records within S that hold `excess` bytes."""
        key = (A, S, excess)
        if key not in self.known_drops:
            things = [(self.value[l], 1 << l, 0) for l in _bits(A)] + [(self.saved[l], 0, 1 << l) for l in _bits(S)]
            things.sort(reverse=True)
            found: list[tuple[int, int]] = []
            todo = [(0, excess, 0, 0)]
            while todo:
                i, left, gone_A, gone_S = todo.pop()
                if left <= 0:  # Taken in falling order, so without the last, and so without any, it is not enough.
                    found.append((gone_A, gone_S))
                elif i < len(things) and things[i][0] > 0:
                    size, bit_A, bit_S = things[i]
                    todo.append((i + 1, left, gone_A, gone_S))
                    todo.append((i + 1, left - size, gone_A | bit_A, gone_S | bit_S))
            self.known_drops[key] = found
        return self.known_drops[key]

    def tightest(self) -> list[str]:
        """The runs of some plan of least peak: Dijkstra's algorithm with the fullest run so far as distance."""
        peak = {self.start: self.held(self.start)}
        parents: Parents = {self.start: None}
        queue = [(peak[self.start], self.start)]
        while True:
            now, state = heappop(queue)
            if now > peak[state]:
                continue
            if state.d == 0:
                return _path(parents, state)
            steps = [(_words(move, 0, 0), move.during, move.after) for move in self.moves(state)]
            steps += [((f"drop value {l}",), 0, state._replace(A=state.A & ~(1 << l))) for l in _bits(state.A & ~1)]
            loose = state.S & ~self.firm
            steps += [((f"drop saved {l}",), 0, state._replace(S=state.S & ~(1 << l))) for l in _bits(loose)]
            for words, during, after in steps:
                then = max(now, during)
                if then < peak.get(after, then + 1):
                    peak[after] = then
                    parents[after] = (state, words)
                    heappush(queue, (then, after))


def _words(move: Move, gone_A: int, gone_S: int) -> tuple[str, ...]:
    """The drops and the run of one step."""
    values = (f"drop value {l}" for l in _bits(move.sheds | gone_A))
    return (*values, *(f"drop saved {l}" for l in _bits(gone_S)), move.run)


def _bits(mask: int) -> list[int]:
    return [l for l in range(mask.bit_length()) if mask >> l & 1]


def _subset_sums(sizes: tuple[int, ...]) -> list[int]:
    """The total of every subset of `sizes`, by its bits."""
    sums = [0]
    for size in sizes:
        sums += [size + total for total in sums]
    return sums


def _path(parents: Parents, state: State) -> list[str]:
    """The runs that lead to `state`. Where a value's last use was to make the next, F_none does both."""
    steps: list[str] = []
    step = parents[state]
    while step is not None:
        state, runs = step
        steps += reversed(runs)
        step = parents[state]
    steps.reverse()
    place = len(steps) - 1
    while place >= 0:
        word, _, number = steps[place].rpartition(" ")
        if word == "drop value":
            next_stage = f" {int(number) + 1}"
            use = max(i for i in range(place) if steps[i].endswith((next_stage, f" {number}")))
            if steps[use] == f"F_ck{next_stage}":
                steps[use] = f"F_none{next_stage}"
                del steps[place]
        place -= 1
    return steps
