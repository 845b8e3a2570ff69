"""Do the answers of `lowtide solve` agree with enumeration, on tens of thousands of small drawn problems?

    PYTHONPATH=src:. python bench/comparison.py > bench/results/comparison.jsonl     every question
    PYTHONPATH=src:. python bench/comparison.py "min_peak sum" 4000 1                one: its name, cases and seed

One JSON line a question: the method and its options, how many cases were drawn from which seed, the seconds they took,
how many answers were wrong, and the first wrong one. The exit code is 1 if any was.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from tests.oracles.comparison import QUESTIONS

SEED = 1
CASES = 4000
# Where enumeration takes a second a case, and where it takes none.
OTHER_CASES = {"rotor longer": 150, "exact chain longer": 100, "exact dag larger": 400, "closed_sets": 20_000}
OTHER_CASES |= {name: 10_000 for name in QUESTIONS if name.startswith("min_peak")}


def row(name: str, cases: int, seed: int) -> dict[str, Any]:
    """The line of one question."""
    question = QUESTIONS[name]
    start = time.process_time()
    wrong = list(question.disagreements(cases, seed))
    line: dict[str, Any] = {
        "command": f'PYTHONPATH=src:. python bench/comparison.py "{name}" {cases} {seed}',
        "asked": name,
        "method": question.method,
        "options": question.options,
        "cases": cases,
        "disagreements": len(wrong),
        "cpu_seconds": round(time.process_time() - start, 1),
    }
    if wrong:
        line["first"] = dict(zip(("line", "answer", "wrong"), wrong[0]))
    return line


def main() -> int:
    """Answer one question, or all."""
    if len(sys.argv) > 1:
        asked = [(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))]
    else:
        asked = [(name, OTHER_CASES.get(name, CASES), SEED) for name in QUESTIONS]
    wrong = 0
    for name, cases, seed in asked:
        line = row(name, cases, seed)
        wrong += line["disagreements"]
        print(json.dumps(line), flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
