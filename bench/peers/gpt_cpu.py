"""The PyTorch counterpart of `megatron bench train gpt-10m`: same shapes, same arithmetic, on the CPU.

Prints one JSON object: tokens per second of eager PyTorch and, with --compile, of torch.compile.
"""
import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

LAYERS, HIDDEN, HEADS, FFN, VOCAB, BATCH, LENGTH = 8, 256, 8, 640, 14336, 8, 256


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.RMSNorm(HIDDEN, eps=1e-5)
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.proj = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.norm2 = nn.RMSNorm(HIDDEN, eps=1e-5)
        self.fc1 = nn.Linear(HIDDEN, 2 * FFN, bias=False)
        self.fc2 = nn.Linear(FFN, HIDDEN, bias=False)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        x = x + self.proj(o.transpose(1, 2).reshape(b, t, HIDDEN))
        gate, up = self.fc1(self.norm2(x)).chunk(2, dim=-1)
        return x + self.fc2(F.silu(gate) * up)


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN, eps=1e-5)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)
        dim = HIDDEN // HEADS
        freq = 10000.0 ** (-torch.arange(0, dim, 2) / dim)
        angle = torch.arange(LENGTH)[:, None] * freq[None]
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, tokens, labels):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits = F.linear(self.norm(x), self.embedding.weight)
        return F.cross_entropy(logits.view(-1, VOCAB), labels.reshape(-1))


def measure(step, warmup, steps):
    for _ in range(warmup):
        step()
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    times.sort()
    return BATCH * LENGTH / times[len(times) // 2]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    result = {"torch": torch.__version__, "threads": args.threads}
    data = torch.randint(0, VOCAB, (BATCH, LENGTH + 1))
    for name in ["eager"] + (["compile"] if args.compile else []):
        model = Gpt()
        forward = torch.compile(model) if name == "compile" else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

        def step():
            loss = forward(data[:, :-1], data[:, 1:])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss.item()

        result[name + "_tokens_per_second"] = round(measure(step, 3, args.steps))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
