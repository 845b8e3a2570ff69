"""Front: of many tries, those that no other beats in both peak and time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from lowtide.planners.choice import Tried


class Front:
    """Tries by rising peak and falling time.

    >>> front = Front()
    >>> front.fastest(100) is None
    True
    """

    def __init__(self, tries: Iterable[Tried] = ()) -> None:
        self._peaks: list[int] = []
        self._tries: list[Tried] = []
        for tried in tries:
            self.add(tried)

    def __iter__(self) -> Iterator[Tried]:
        return iter(self._tries)

    def add(self, tried: Tried) -> None:
        """Take a try in, and what it beats out."""
        peak, time = tried.seen.peak, tried.seen.time
        at = bisect_right(self._peaks, peak)
        if at and self._tries[at - 1].seen.time <= time:
            return
        begin = bisect_left(self._peaks, peak)
        end = begin
        while end < len(self._tries) and self._tries[end].seen.time >= time:
            end += 1
        self._peaks[begin:end] = [peak]
        self._tries[begin:end] = [tried]

    def fastest(self, budget: int) -> Tried | None:
        """The fastest whose peak is at most `budget`."""
        at = bisect_right(self._peaks, budget)
        return self._tries[at - 1] if at else None
