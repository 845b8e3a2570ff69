"""Everything that is to be seen on a GPU, in one command that installs nothing and takes up where it stopped.

    python3 bench/gpu.py [--results FILE] [--seconds 540] [--jobs 8] [--only WORD]

It runs with whichever Python and torch it is called with, from the folder of the project, the package from `src`: first
the zoo and tests/test_device.py, measured by the device's own counters, then the tests that train on the CPU, since the
release of torch is often another here. Each case is a process of its own and one JSON line in FILE; cases that passed
there are not run again, and none is begun once the time is over. Without a GPU everything runs on the CPU: a rehearsal.

Where pytest or hypothesis are missing, `python3 bench/gpu.py --gather FOLDER` beforehand, where they are there, copies
them to a folder that is found here as `.gpu`. Where numba is missing, its loops run as plain Python and plans are made
by `greedy`, which the line of each case says.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGES = ROOT / ".gpu"
PURE = (
    "pytest",
    "_pytest",
    "pluggy",
    "iniconfig",
    "packaging",
    "pygments",
    "hypothesis",
    "sortedcontainers",
    "attr",
    "attrs",
)
ON_THE_DEVICE = ("tests/test_device.py", "tests/test_fit.py")
ON_THE_CPU = (
    "tests/test_handing_over.py",
    "tests/test_front_end.py",
    "tests/test_traps.py",
    "tests/test_undefined.py",
    "tests/test_emission.py",
    "tests/test_faults.py",
    "tests/test_uses.py",
    "tests/measure",
)
# Stands in for numba where it is missing: the same loops, slowly.
PLAIN_LOOPS = "def njit(*args, **kwargs):\n    return lambda function: function\n"
WITH_GREEDY = """
from lowtide import api
for call in (api.fit, api.plan):
    call.__kwdefaults__["planner"] = "greedy"
"""


def main() -> None:
    """Run what is left to run; exit with 1 where something failed or was not reached."""
    options = _options()
    if options.gather:
        _gather(Path(options.gather))
        return
    import torch

    environment = _environment()
    about = {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "planner": "best" if importlib.util.find_spec("numba") else "greedy",
    }
    print(json.dumps(about), flush=True)
    results = Path(options.results)
    passed = {line["case"] for line in _lines(results) if line["passed"] and line["device"] == about["device"]}
    cases = [case for case in _cases(environment) if options.only in case]
    left = [case for case in cases if case not in passed]
    end = time.monotonic() + options.seconds
    results.parent.mkdir(parents=True, exist_ok=True)

    def run(case: str) -> dict[str, Any] | None:
        if time.monotonic() > end:
            return None
        line = {"bench": "gpu", "case": case, **about, **_run(case, environment, end - time.monotonic())}
        with results.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print("passed" if line["passed"] else "FAILED", case, f"{line['seconds']} s", flush=True)
        return line

    with ThreadPoolExecutor(options.jobs) as pool:
        lines = list(pool.map(run, left))
    failed = [line for line in lines if line is not None and not line["passed"]]
    for line in failed:
        print(f"--- {line['case']}\n{line['tail']}")
    unreached = lines.count(None)
    print(
        f"{len(cases)} cases: {len(cases) - len(failed) - unreached} passed, {len(failed)} failed, {unreached} to come"
    )
    sys.exit(1 if failed or unreached else 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", default=str(ROOT / "bench" / "results" / "gpu.jsonl"))
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--jobs", type=int, default=max(1, min(8, (os.cpu_count() or 2) // 2)))
    parser.add_argument("--only", default="")
    parser.add_argument("--gather", default="")
    return parser.parse_args()


def _gather(folder: Path) -> None:
    """Copy what is pure Python and may be missing."""
    for name in PURE:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue  # Not every release of these needs all of them.
        source = Path(spec.origin)
        source = source.parent if source.name == "__init__.py" else source
        if source.is_dir():
            shutil.copytree(source, folder / name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, folder)


def _environment() -> dict[str, str]:
    """What the cases run with: the package from its sources, and behind the rest what stands in for what is missing."""
    loops = PACKAGES / "loops"
    paths = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT)]
    if importlib.util.find_spec("numba") is None:
        loops.mkdir(parents=True, exist_ok=True)
        (loops / "numba.py").write_text(PLAIN_LOOPS)
        (loops / "with_greedy.py").write_text(WITH_GREEDY)
        paths.append(str(loops))
    if importlib.util.find_spec("pytest") is None:
        paths.append(str(PACKAGES))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def _pytest(environment: dict[str, str], *arguments: str) -> list[str]:
    greedy = ["-p", "with_greedy"] if "loops" in environment["PYTHONPATH"] else []
    return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *greedy, *arguments]


def _cases(environment: dict[str, str]) -> list[str]:
    """Each model and each kind of layer by itself; of the tests on the CPU, a file each."""
    found = subprocess.run(
        _pytest(environment, "--collect-only", *ON_THE_DEVICE),
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    single = [line.strip() for line in found.stdout.splitlines() if "::" in line]
    if found.returncode or not single:
        sys.exit(f"nothing could be collected:\n{found.stdout}\n{found.stderr}")
    return [*single, *ON_THE_CPU]


def _run(case: str, environment: dict[str, str], seconds: float) -> dict[str, Any]:
    start = time.monotonic()
    try:
        found = subprocess.run(
            _pytest(environment, case),
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds + 30,
            check=False,
        )
        passed, tail = found.returncode == 0, found.stdout[-3000:]
    except subprocess.TimeoutExpired as error:
        passed, tail = False, f"stopped after {error.timeout:.0f} s"
    return {"passed": passed, "seconds": round(time.monotonic() - start, 1), "tail": "" if passed else tail}


def _lines(results: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []


if __name__ == "__main__":
    main()
