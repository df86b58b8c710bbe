"""Times PyTorch's CPU scaled_dot_product_attention, causal, forward and forward+backward, on the shapes of
`megatron bench ops`.

usage: attention.py [threads] [--cpu-time]

--cpu-time counts this process's CPU seconds instead of the clock's: the better measure on a busy machine, with one
thread.
"""
import sys
import time

import torch
import torch.nn.functional as F

SHAPES = [  # batch, sequence, query heads, kv heads, head size
    (8, 256, 8, 8, 32),
    (2, 1024, 8, 8, 64),
    (1, 4096, 8, 8, 64),
    (2, 1024, 8, 2, 128),
]


def best_of(run, clock, seconds=3.0, least=5):
    best, end, n = float("inf"), clock() + seconds, 0
    while n < least or clock() < end:
        start = clock()
        run()
        best = min(best, clock() - start)
        n += 1
    return best


def main():
    words = [w for w in sys.argv[1:] if w != "--cpu-time"]
    clock = time.process_time if "--cpu-time" in sys.argv else time.perf_counter
    torch.set_num_threads(int(words[0]) if words else 2)
    torch.manual_seed(0)
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads, fp32, causal")
    for batch, length, heads, kv_heads, size in SHAPES:
        q = torch.randn(batch, heads, length, size, requires_grad=True)
        k, v = (torch.randn(batch, kv_heads, length, size, requires_grad=True) for _ in range(2))
        grad = torch.randn(batch, heads, length, size)

        def forward():
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != kv_heads)

        def both():
            q.grad = k.grad = v.grad = None
            forward().backward(grad)

        with torch.no_grad():
            f = best_of(forward, clock)
        b = best_of(both, clock)
        flops = 2 * 2 * batch * heads * size * length * (length + 1) / 2
        shape = f"{batch}x{length}x{heads}x{size}" + (f" on {kv_heads} KV heads" if kv_heads != heads else "")
        print(f"{shape}: forward {f * 1e3:.2f} ms ({flops / f / 1e9:.0f} GFLOP/s), "
              f"forward+backward {b * 1e3:.2f} ms ({3.5 * flops / b / 1e9:.0f} GFLOP/s)", flush=True)


if __name__ == "__main__":
    main()
