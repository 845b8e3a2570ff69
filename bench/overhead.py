"""What carrying out a plan that reruns nothing costs over plain eager PyTorch, on a 12-layer GPT.

    python bench/overhead.py >> bench/results/overhead.jsonl

Plain and fitted steps take turns, so that whatever else the machine does touches both alike; on a CPU that others use
too, the time that the thread itself was given says more than the clock.
"""

from __future__ import annotations

import copy
import json
import statistics
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import lowtide


def main() -> None:
    """Print one line."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = GPT2Config(n_layer=12, n_embd=128, n_head=4, vocab_size=512, n_positions=128, loss_type="ForCausalLM")
    plain = GPT2LMHeadModel(config).train().to(device)
    fitted = lowtide.fit(copy.deepcopy(plain), memory_budget="1TB", planner="keep_all")
    tokens = torch.randint(512, (4, 128), device=device)
    models = {"plain": plain, "fitted": fitted}
    times: dict[str, list[float]] = {name: [] for name in models}
    given: dict[str, list[float]] = {name: [] for name in models}
    for turn in range(45):
        for name, model in models.items():
            start, start_given = time.perf_counter(), time.thread_time()
            model(input_ids=tokens, labels=tokens).loss.backward()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if turn >= 5:
                times[name].append(time.perf_counter() - start)
                given[name].append(time.thread_time() - start_given)
            model.zero_grad()
    line = {
        "bench": "overhead",
        "command": "python bench/overhead.py",
        "torch": torch.__version__,
        "device": device.type,
        "model": "GPT-2, 12 layers of width 128, 4 x 128 tokens",
        "turns": len(times["plain"]),
        **{f"{name}_ms_median": round(1e3 * statistics.median(found), 2) for name, found in times.items()},
        **{f"{name}_ms_least": round(1e3 * min(found), 2) for name, found in times.items()},
        **{f"{name}_thread_ms_median": round(1e3 * statistics.median(found), 2) for name, found in given.items()},
        "overhead_least": round(min(times["fitted"]) / min(times["plain"]) - 1, 4),
        "overhead_thread": round(statistics.median(given["fitted"]) / statistics.median(given["plain"]) - 1, 4),
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
