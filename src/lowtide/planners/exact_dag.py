"""The true optimum of a small Dag: any order of ops, any number of reruns, anything dropped at any time."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lowtide.errors import BudgetTooSmall, InvalidProblem
from lowtide.planners import dag_step
from lowtide.planners.dag import TOTAL, Dag

MOST = 8
States = NDArray[np.int32]
Ints = NDArray[np.int64]
# States, the states they were reached from, and by which move.
Moves = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int8]]


@dataclass(frozen=True, slots=True)
class Optimum:
    """A step of least extra time.

    time   extra time over running each op once, ns
    peak   bytes; no step of this extra time needs fewer
    runs   op numbers of dag_step
    """

    time: int
    peak: int
    runs: tuple[int, ...]


def solve(dag: Dag, budget: int | None) -> Optimum:
    """Step of least extra time whose peak is at most `budget`; of those, one of least peak.

    Over all sequences of the ops of dag_step that run each at least once. A rerun of fwd(v) costs ns[v]. bwd has no
    time in this problem: running it again is free, and helps where a large gradient can be made again from smaller
    ones (test_a_gradient_made_again_can_save_memory).

    A state is the set of values and gradients in memory and the set of gradients made so far. From one state to the
    next an op runs, where memory holds what it reads and has room for what it writes, or something is dropped. A* with

        rest(state) = ns of every fwd that must still run: what the missing bwd need and memory does not hold, and what
                      that needs in turn

    which no run lowers by more than its own time, so every state is settled once, at its least time. All states of
    equal time + rest are followed together.

    Optimal over all steps. For n up to 8: at most 2^(3n) states. Ref: Hart, Nilsson and Raphael 1968,
    doi:10.1109/TSSC.1968.300136.
    """
    if len(dag) > MOST:
        raise InvalidProblem(f"bytes: exact takes dags of at most {MOST} values, found {len(dag)}", "bytes")
    search = _Search(dag)
    allowed = 2 * TOTAL if budget is None else min(budget, 2 * TOTAL)
    runs = search.run(allowed, dag.ns)
    if runs is None:
        needed = search.least_peak()
        message = f"no order of ops and reruns has a peak within {allowed} bytes; the least peak is {needed}"
        raise BudgetTooSmall(message, budget=allowed, needed=needed)
    time = search.extra(runs)
    runs = search.lowest(runs, dag.ns, search.widest(), time)
    return Optimum(time, dag_step.peak(dag, runs), runs)


def least_peak(dag: Dag) -> int:
    """The least budget that `solve` has a step for."""
    return _Search(dag).least_peak()


class _Search:
    """States as numbers: bits 0..n-1 values in memory, n..2n-1 gradients in memory, 2n..3n-1 gradients made."""

    def __init__(self, dag: Dag) -> None:
        self.dag = dag
        self.n = n = len(dag)
        self.reads = dag_step.reads(dag)
        self.read_bits = [sum(1 << value for value in row) for row in self.reads]
        held = np.zeros(1, dtype=np.int64)
        for size in dag.bytes * 2:
            held = np.concatenate([held, held + size])
        self.held = held
        self.goal = ((1 << n) - 1) << 2 * n

    def extra(self, runs: tuple[int, ...]) -> int:
        """Time of the reruns."""
        return sum(self.dag.ns[op] for op in runs if op < self.n) - sum(self.dag.ns)

    def least_peak(self) -> int:
        """The least budget that some step fits in."""
        n = self.n
        plain = (*range(n), *range(2 * n - 1, n - 1, -1))
        return dag_step.peak(self.dag, self.lowest(plain, (0,) * n, self.widest(), 0))

    def widest(self) -> int:
        """The most that one op reads and writes; no budget below it will do."""
        n, sizes = self.n, self.dag.bytes
        return max(sizes[op % n] + sum(sizes[value % n] for value in row) for op, row in enumerate(self.reads))

    def lowest(self, runs: tuple[int, ...], ns: tuple[int, ...], low: int, time: int) -> tuple[int, ...]:
        """Of the runs of extra time at most `time`, of which `runs` is one, those of least peak, known to be at least
        `low`: bisection, each success lowered to its own peak.
        """
        high = dag_step.peak(self.dag, runs)
        while low < high:
            middle = (low + high) // 2
            found = self.run(middle, ns, time)
            if found is None:
                low = middle + 1
            else:
                runs, high = found, dag_step.peak(self.dag, found)
        return runs

    def run(self, budget: int, ns: tuple[int, ...], most: int | None = None) -> tuple[int, ...] | None:
        """Fastest runs within `budget`, of extra time at most `most`; None where there are none."""
        n = self.n
        total = sum(ns)
        price = np.array([*ns, *[0] * 3 * n], dtype=np.int64)
        # Where each state came from, and by which move: an op, or 2n + x where value x was dropped.
        origin = np.full(1 << 3 * n, -1, dtype=np.int32)
        by = np.zeros(1 << 3 * n, dtype=np.int8)
        start = np.zeros(1, dtype=np.int32)
        waiting: dict[int, list[Moves]] = {total: [(start, start, np.zeros(1, dtype=np.int8))]}
        bounds = [total]
        while bounds:
            bound = heapq.heappop(bounds)
            if most is not None and bound > total + most:
                return None
            wave = waiting.pop(bound)
            while wave:
                now = self._settle(wave, origin, by)
                ended = now[(now & self.goal) == self.goal]
                if len(ended):
                    return self._trace(int(ended[0]), origin, by)
                wave = []
                to, place, move = self._moves(now, budget, origin)
                reached = (bound - self._rest(now, ns))[place] + price[move] + self._rest(to, ns)
                for value in np.unique(reached).tolist():
                    same = reached == value
                    moves = (to[same], now[place[same]], move[same])
                    if value == bound:
                        wave.append(moves)
                    elif value in waiting:
                        waiting[value].append(moves)
                    else:
                        waiting[value] = [moves]
                        heapq.heappush(bounds, value)
        return None

    def _settle(self, wave: list[Moves], origin: NDArray[np.int32], by: NDArray[np.int8]) -> States:
        """Mark the states of a wave that are new, each with where it came from."""
        to, came, move = (np.concatenate(column) for column in zip(*wave))
        to, first = np.unique(to, return_index=True)
        new = origin[to] < 0
        settled: States = to[new]
        origin[settled], by[settled] = came[first[new]], move[first[new]]
        return settled

    def _moves(
        self, now: States, budget: int, origin: NDArray[np.int32]
    ) -> tuple[States, NDArray[np.intp], NDArray[np.int8]]:
        """The states not yet settled that a move leads to, the place in `now` that it leads from, and the move."""
        found = []
        for move in range(4 * self.n):
            at, to = self._move(now, move, budget)
            fresh = origin[to] < 0
            found.append((to[fresh], at[fresh], np.full(np.count_nonzero(fresh), move, dtype=np.int8)))
        to, place, which = (np.concatenate(column) for column in zip(*found))
        return to, place, which

    def _move(self, now: States, move: int, budget: int) -> tuple[NDArray[np.intp], States]:
        """The states that `move` leads to, and the places in `now` that it leads from."""
        n = self.n
        memory = (1 << 2 * n) - 1
        if move >= 2 * n:
            bit = 1 << move - 2 * n
            at = np.flatnonzero(now & bit)
            return at, now[at] & ~np.int32(bit)
        bit, needs = 1 << move, self.read_bits[move]
        at = np.flatnonzero(((now & needs) == needs) & ((now & bit) == 0))
        to = now[at] | np.int32(bit)
        if move >= n:
            to |= np.int32(bit << n)
        fits = self.held[to & memory] <= budget
        return at[fits], to[fits]

    def _rest(self, states: States, ns: tuple[int, ...]) -> Ints:
        """Time of the fwd runs that no way on from these states can do without."""
        n, after = self.n, self.dag.after
        wanted = [(states >> 2 * n + v & 1) == 0 for v in range(n)]
        missing = [(states >> v & 1) == 0 for v in range(2 * n)]
        for v in range(n):
            for s in after[v]:
                wanted[s] = wanted[s] | (wanted[v] & missing[n + s])
        needed = [np.zeros(len(states), dtype=bool) for _ in range(n)]
        for v in range(n):
            for value in self.reads[n + v]:
                if value < n:
                    needed[value] |= wanted[v]
        rest = np.zeros(len(states), dtype=np.int64)
        for v in range(n - 1, -1, -1):
            needed[v] &= missing[v]
            for u in self.dag.before[v]:
                needed[u] |= needed[v]
            rest += ns[v] * needed[v]
        return rest

    def _trace(self, state: int, origin: NDArray[np.int32], by: NDArray[np.int8]) -> tuple[int, ...]:
        runs = []
        while state:
            if by[state] < 2 * self.n:
                runs.append(int(by[state]))
            state = int(origin[state])
        return tuple(reversed(runs))
