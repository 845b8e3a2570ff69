"""Train a small transformer in half the memory it takes, and see that nothing else changes.

    python examples/demo.py

Prints, for budgets from all that plain training takes down to the least that works: the promised peak, the measured
one, how many operators run again, the time of a step, and whether loss and gradients are the same to the last bit.
"""

from __future__ import annotations

import copy
import time

import torch
from torch import nn

import lowtide
from lowtide.budget import show
from lowtide.measure.live import LiveBytes


class Block(nn.Module):
    """One pre-norm transformer block with dropout."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    """A language model that returns its loss."""

    def __init__(self, vocabulary: int = 512, width: int = 128, layers: int = 6) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*(Block(width, heads=4) for _ in range(layers)))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.blocks(self.embedding(tokens)))
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def train(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: torch.Tensor) -> tuple[list[object], int]:
    """Losses and gradients of two steps from a fixed seed, and the most bytes alive during them."""
    torch.manual_seed(0)
    results: list[object] = []
    with LiveBytes("cpu", holding=[model, optimizer, tokens]) as live:
        for _ in range(2):
            loss = model(tokens)
            loss.backward()
            optimizer.step()
            results += [loss.item(), *(parameter.grad.numpy().tobytes() for parameter in model.parameters())]
            del loss
            optimizer.zero_grad()
    return results, live.peak


def main() -> None:
    """Print one line a budget."""
    torch.manual_seed(0)
    original, tokens = Model(), torch.randint(512, (8, 128))

    def fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = copy.deepcopy(original)
        return model, torch.optim.AdamW(model.parameters())

    plain, _ = train(*fresh(), tokens)
    model, optimizer = fresh()
    everything = lowtide.plan(model, tokens, memory_budget="1TB", optimizer=optimizer).total
    try:
        lowtide.plan(model, tokens, memory_budget=0, optimizer=optimizer)
    except lowtide.BudgetTooSmall as error:
        least = error.needed
    print(f"keeping everything takes {show(everything)}; the least that works is {show(least)}\n")
    print(f"{'budget':>11}  {'promised':>11}  {'measured':>11}  {'reruns':>6}  {'ms a step':>9}  same bits")
    for share in (1, 0.75, 0.5, 0.25, 0):
        budget = int(least + share * (everything - least))
        model, optimizer = fresh()
        lowtide.fit(model, memory_budget=budget, optimizer=optimizer, batch=tokens)
        results, peak = train(model, optimizer, tokens)
        plan = model._compiled_call_impl.plan
        same = results == plain
        start = time.perf_counter()
        for _ in range(3):
            model(tokens).backward()
            optimizer.zero_grad()
        milliseconds = (time.perf_counter() - start) / 3 * 1e3
        facts = f"{show(budget):>11}  {show(plan.total):>11}  {show(peak):>11}  {plan.reruns:>6}  {milliseconds:>9.1f}"
        print(f"{facts}  {'yes' if same else 'NO'}")
        if not same or peak > budget:
            raise SystemExit("a promise was broken")


if __name__ == "__main__":
    main()
