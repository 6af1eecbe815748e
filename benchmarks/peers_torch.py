"""PyTorch's `activation_memory_budget` on the GPT-2 of `benchmarks.models`, CPU.

It needs PyTorch and a C++ compiler, and nothing of this repository, so that PyTorch and
JAX do not have to agree on an environment:

    python3.11 -m venv torch-env
    torch-env/bin/pip install torch==2.13.0 numpy
    torch-env/bin/python benchmarks/peers_torch.py torch.json

The architecture, sizes, dropout and AdamW are those of `benchmarks.models.gpt2`, size
"small"; attention is written out as there. A step is forward, backward and update under
`torch.compile`. Bytes are the state, the batch and the most that was allocated beside
them at once, from the allocations that PyTorch's profiler records. The file is a list
that `benchmarks.peers --read` takes.
"""

import json
import statistics
import sys
import time
import types

import torch  # pyright: ignore[reportMissingImports]
import torch._functorch.config  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]
from torch.nn import functional  # pyright: ignore[reportMissingImports]

LAYERS, WIDTH, HEADS, LENGTH, BATCH, VOCABULARY, DROPOUT = 4, 256, 4, 256, 8, 2048, 0.1
BUDGETS = (1.0, 0.8, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)
ROUNDS = 5


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        causal = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        self.register_buffer("causal", causal)

    def attention(self, x):
        heads = self.qkv(x).view(BATCH, LENGTH, HEADS, -1).transpose(1, 2)
        q, k, v = heads.chunk(3, dim=-1)
        scores = q @ k.transpose(-1, -2) * (WIDTH // HEADS) ** -0.5
        scores = scores.masked_fill(~self.causal, -1e9)
        probabilities = functional.dropout(scores.softmax(-1), DROPOUT)
        mixed = (probabilities @ v).transpose(1, 2).reshape(BATCH, LENGTH, WIDTH)
        return self.out(mixed)

    def mlp(self, x):
        return self.down(functional.gelu(self.up(x), approximate="tanh"))

    def forward(self, x):
        x = x + functional.dropout(self.attention(self.attention_norm(x)), DROPOUT)
        return x + functional.dropout(self.mlp(self.mlp_norm(x)), DROPOUT)


class Gpt2(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def loss(self, tokens, targets):
        x = self.tokens(tokens) + self.positions.weight
        x = functional.dropout(x, DROPOUT)
        for block in self.blocks:
            x = block(x)
        logits = self.norm(x) @ self.tokens.weight.T
        return functional.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))


class Step:
    """A training step whose gradient was compiled under one budget."""

    def __init__(self, budget):
        torch.manual_seed(0)
        self.budget = budget
        self.model = Gpt2()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 3e-4)
        text = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1))
        self.batch = text[:, :-1].contiguous(), text[:, 1:].contiguous()
        # A code object of its own, or PyTorch would reuse what it compiled before.
        code = Gpt2.loss.__code__.replace(co_name=f"loss_{round(100 * budget)}")
        loss = types.FunctionType(code, Gpt2.loss.__globals__)
        self.loss = torch.compile(types.MethodType(loss, self.model))
        with torch._functorch.config.patch(activation_memory_budget=budget):
            self.run()
        self.run()

    def run(self):
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(*self.batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()

    def seconds(self):
        start = time.perf_counter()
        self.run()
        return time.perf_counter() - start

    def bytes(self):
        """State and batch, and the most allocated beside them at once."""
        self.optimizer.zero_grad(set_to_none=True)
        held = [*self.model.parameters(), *self.model.buffers(), *self.batch]
        for state in self.optimizer.state.values():
            held += [leaf for leaf in state.values() if torch.is_tensor(leaf)]
        with torch.profiler.profile(profile_memory=True) as profile:
            self.run()
        events = [
            event
            for event in profile.profiler.kineto_results.events()
            if event.name() == "[memory]"
        ]
        now = most = 0
        for event in sorted(events, key=lambda event: event.start_ns()):
            now += event.nbytes()
            most = max(most, now)
        return sum(tensor.nbytes for tensor in held) + most


def main():
    path = sys.argv[1]
    steps = [Step(budget) for budget in BUDGETS]
    sizes = [step.bytes() for step in steps]
    rounds = []
    for _ in range(ROUNDS):
        rounds.append([step.seconds() for step in steps])
    peers = [
        {
            "system": "PyTorch",
            "setting": f"activation_memory_budget {step.budget:g}",
            "asked": None,
            "bytes": size / sizes[0],
            "flops": None,
            "time": statistics.median(r[i] / r[0] for r in rounds),
            "note": f"{size / 1e6:.1f} MB",
        }
        for i, (step, size) in enumerate(zip(steps, sizes, strict=True))
    ]
    with open(path, "w") as file:
        json.dump(peers, file, indent=1)
    for peer in peers:
        print(peer)


if __name__ == "__main__":
    main()
