"""bench/devices.py on the CPU, small: it adds what is missing, fails in lines, and its tables are its lines'."""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from lowtide import device

BENCH = Path(__file__).parents[1] / "bench"


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return importlib.import_module("devices")


@pytest.fixture
def devices_table(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("devices_table")


WANTED = {"range", "plain", "every second block", "budget 0.4", "at every second block", "exact"}


def test_cases_that_are_missing_are_run_and_no_others(devices: Any) -> None:
    """Promises are kept to the byte, and bits are equal; what has a line is not run again."""
    known: dict[str, Any] = {}
    written: list[dict[str, Any]] = []
    bench = devices.Bench("gpt-blocks-6", True, known, written.append)
    cases = bench.cases
    bench.cases = lambda: ((name, do) for name, do in cases() if name in WANTED)
    assert bench.run(time.monotonic() + 1000) == []
    assert {row["case"] for row in written} == WANTED
    assert [row["error"] for row in written if "error" in row] == []
    rows = {row["case"]: json.loads(json.dumps(row)) for row in written}
    assert rows["range"]["least"] < rows["range"]["plain"]
    for name in ("budget 0.4", "at every second block"):
        row = rows[name]
        assert row["kept"]
        assert row["peak"] <= row["promised_peak"] <= row["budget"]
        assert len(row["checked"]) == 3
    if torch.cuda.is_available():
        return
    assert rows["exact"]["deterministic"]["differing"] == []
    assert rows["exact"]["deterministic"]["plain_repeats"]
    assert rows["budget 0.4"]["peak"] > 0.9 * rows["budget 0.4"]["promised_peak"]
    assert bench.run(time.monotonic() + 1000) == []
    assert len(written) == len(WANTED)


def test_time_is_kept_to_and_the_rest_is_named(devices: Any) -> None:
    bench = devices.Bench("unet", True, {}, lambda row: None)
    left = bench.run(time.monotonic() - 1)
    assert left[:2] == ["range", "plain"]


def test_a_failure_is_a_line(devices: Any) -> None:
    def fail() -> dict[str, Any]:
        raise torch.OutOfMemoryError("no room")

    row = devices.Bench("unet", True, {}, print).line("plain", fail)
    assert row["error"] == "OutOfMemoryError: no room"
    assert row["command"].endswith("unet --tiny")


@pytest.mark.parametrize("name", ["resnet50", "vgg19-bn", "unet", "vit-large", "llama-16", "gpt-blocks-12"])
def test_blocks_are_found_and_checkpointed(name: str, devices: Any) -> None:
    """As many as are asked for, and the loss stays what it was."""
    losses, counts = [], []
    for every in (None, 1, 2):
        trial = devices.trial(devices.CASES[name], True)
        if every is not None:
            counts.append(devices.wrap_blocks(trial.model, every))
        torch.manual_seed(0)
        losses.append(trial.forward_backward())
    assert counts[0] > 1
    assert counts[1] == -(-counts[0] // 2)
    torch.testing.assert_close(losses[0], losses[1])
    torch.testing.assert_close(losses[0], losses[2])


def test_the_cpu_says_how_far_its_estimates_were() -> None:
    """As the benchmark's lines have it."""
    lines = (BENCH / "results" / "estimates.jsonl").read_text().splitlines()
    rows = [found for found in map(json.loads, lines) if found["threads"] == 1 and "NVIDIA" not in found["device"]]
    shares = [found["estimated_of_plain"] for found in rows]
    assert device.CPU.seen == f"{min(shares):.1f} to {max(shares):.1f} times what one core took"


def row(case: str, **facts: Any) -> dict[str, Any]:
    return {"bench": "devices", "device": "a GPU", "workload": "a model", "case": case, **facts}


def test_tables(devices_table: Any) -> None:
    """Worked out by hand: peers at 60 MiB and 40 MiB, the middle at 60, where 5 ms of extra stand beside 20."""
    mib = 2**20
    both = {"peak": 100 * mib, "ms": 100.0, "ms_passes": 90.0}
    plan = {"promised_ms": 92.0, "kept": True, "reruns": 3}
    page = devices_table.draw(
        [
            row("range", promised_ms=90.0),
            row("plain", **both),
            row("plain again", **both),
            row("keep-all", overhead=0.004, peak_difference=-mib),
            row("every block", peak=40 * mib, ms=130.0, ms_passes=120.0),
            row("every second block", peak=60 * mib, ms=120.0, ms_passes=110.0),
            row("save_on_cpu", error="OutOfMemoryError: no | room"),
            row("budget 0", peak=20 * mib, promised_peak=20 * mib, ms=110.0, ms_passes=100.0, **plan),
            row("at every second block", peak=60 * mib, promised_peak=61 * mib, ms=105.0, ms_passes=92.0, **plan),
            row("exact", deterministic={"plain_repeats": True, "differing": []}),
            row("half the memory", limit=50 * mib, plain_fits=False, peak=45 * mib),
        ]
    )
    assert "| a model | 2 | 2 | 0.82 % | 1.64 % | 4.00 % | 8.00 % | 80.0 % | +0.40 %, -1.0 MiB | equal |" in page
    assert "| a model | 5.0 % | 20.0 % | 0.25 | -12.5 % | 20 MiB | 40 MiB |" in page
    assert "| save_on_cpu | OutOfMemoryError: no / room | | | | | | |" in page
    assert "with 50 MiB in all, plain training fails, and this trains in 45 MiB" in page


def test_below_every_peer_no_line_is_drawn(devices_table: Any) -> None:
    points = [(10, 5.0), (20, 3.0), (15, 9.0)]
    assert devices_table.front(points) == [(10, 5.0), (20, 3.0)]
    assert devices_table.between(points, 15) == 4
    assert devices_table.between(points, 9) == float("inf")
    assert devices_table.between(points, 30) == 3


def test_the_script_lists_its_workloads(devices: Any, capsys: pytest.CaptureFixture[str]) -> None:
    sys.argv, before = ["devices.py"], sys.argv
    try:
        devices.main()
    finally:
        sys.argv = before
    assert capsys.readouterr().out.split() == list(devices.CASES)
