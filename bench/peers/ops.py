#!/usr/bin/env python3
"""The PyTorch counterpart of `megatron bench ops`: the same ops by name and shape, on the CPU, in eager mode.

Prints one JSON document with the rows that `megatron bench ops --json` has, as far as PyTorch has the op.
"""
import argparse
import json
import sys
import time

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    sys.exit("ops.py: PyTorch is not installed for this Python (%s): nothing was measured" % sys.executable)


def measured_seconds(body):
    """As the command does it: one call to warm up, then the mean over at least a millisecond."""
    start = time.perf_counter()
    body()
    first = max(time.perf_counter() - start, 1e-9)
    calls = int(min(max(1e-3 / first, 1), 1e5))
    start = time.perf_counter()
    for _ in range(calls):
        body()
    return (time.perf_counter() - start) / calls


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def cases(tokens, dtype):
    """(op, shape, tensors that get gradients, function of them, whether there is a backward pass)"""
    randn = lambda *shape: torch.randn(*shape).to(dtype)
    name = lambda *shape: "x".join(str(size) for size in shape)

    for n_in, n_out in [(256, 768), (256, 256), (256, 1280), (640, 256), (256, 14336), (1024, 1024), (1024, 4096)]:
        yield "linear", f"{tokens}x{n_in}->{n_out}", lambda: [randn(tokens, n_in), randn(n_out, n_in)], F.linear, True

    for batch, length, heads, channels in [(8, 256, 8, 32), (2, 1024, 8, 64), (1, 4096, 8, 64)]:
        make = lambda: [randn(batch, length, heads, channels) for _ in range(3)]
        attend = lambda q, k, v: F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        yield "attention", name(batch, length, heads, channels), make, attend, True

    yield "matmul", "64x 256x32x256", lambda: [randn(64, 256, 32), randn(64, 32, 256)], torch.matmul, True

    h = 1024
    x, pair = lambda: [randn(tokens, h)], lambda: [randn(tokens, h), randn(tokens, h)]
    weighted = lambda: [randn(tokens, h), randn(h)]
    yield "rmsnorm", name(tokens, h), weighted, lambda x, w: F.rms_norm(x, (h,), w, 1e-5), True
    yield "layernorm", name(tokens, h), lambda: weighted() + [randn(h)], lambda x, w, b: F.layer_norm(x, (h,), w, b), True

    def residual_norm(x, residual, w):
        total = x + residual
        return F.rms_norm(total, (h,), w, 1e-5), total

    yield "residual_rmsnorm", name(tokens, h), lambda: pair() + [randn(h)], residual_norm, True

    angle = torch.arange(tokens)[:, None] * 10000.0 ** (-torch.arange(0, 64, 2) / 64)
    cos, sin = angle.cos()[:, None].to(dtype), angle.sin()[:, None].to(dtype)
    yield "rope", name(tokens, 16, 64), lambda: [randn(tokens, 16, 64)], lambda x: rotate(x, cos, sin), True

    def split(qkv):
        q, k, v = qkv.view(tokens, 16, 3, 64).unbind(2)
        return rotate(q, cos, sin), rotate(k, cos, sin), v.contiguous()

    yield "split_qkv", name(tokens, 48, 64), lambda: [randn(tokens, 48 * 64)], split, True

    yield "add", name(tokens, h), pair, torch.add, True
    yield "mul", name(tokens, h), pair, torch.mul, True
    yield "scale", name(tokens, h), x, lambda x: x * 0.5, True
    other = torch.bfloat16 if dtype == torch.float32 else torch.float32
    yield "cast", name(tokens, h), x, lambda x: x.to(other), True
    yield "sum", name(tokens, h), x, torch.sum, True
    yield "softmax", name(tokens, h), x, lambda x: torch.softmax(x, -1), True
    yield "dropout", name(tokens, h), x, lambda x: F.dropout(x, 0.1), True
    wide = lambda: [randn(tokens, 4 * h)]
    yield "gelu", name(tokens, 4 * h), wide, lambda x: F.gelu(x, approximate="tanh"), True

    def swiglu(x):
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate) * up

    yield "swiglu", name(tokens, 4 * h), wide, swiglu, True

    width, vocabulary = 256, 14336
    ids = torch.randint(0, vocabulary, (tokens,))
    yield ("embedding", f"{tokens} of {vocabulary}x{width}", lambda: [randn(vocabulary, width)],
           lambda table: F.embedding(ids, table), True)
    yield ("cross_entropy", name(tokens, vocabulary), lambda: [randn(tokens, vocabulary)],
           lambda logits: F.cross_entropy(logits, ids, reduction="none"), True)
    yield ("linear_cross_entropy", f"{tokens}x{width}->{vocabulary}",
           lambda: [randn(tokens, width), randn(vocabulary, width)],
           lambda x, w: F.cross_entropy(F.linear(x, w), ids, reduction="none"), True)

    yield "top_k", name(tokens, 64), lambda: [randn(tokens, 64)], lambda x: torch.topk(x, 8).values, True
    experts, k = 8, 2
    expert_of_copy = torch.randint(0, experts, (tokens * k,))
    copy_of_row = torch.argsort(expert_of_copy, stable=True)
    row_of_copy, token_of_row = torch.argsort(copy_of_row), copy_of_row // k
    yield ("moe_permute", f"{name(tokens, h)} to {k} of {experts}", x, lambda x: x.index_select(0, token_of_row), True)
    yield ("moe_unpermute", f"{name(tokens, h)} from {k} of {experts}",
           lambda: [randn(tokens * k, h), torch.randn(tokens, k)],
           lambda x, w: (x.index_select(0, row_of_copy).view(tokens, k, h) * w[..., None].to(dtype)).sum(1), True)

    bounds = torch.bincount(expert_of_copy, minlength=experts).cumsum(0).tolist()

    def grouped(x, w):
        rows = [x[begin:end] for begin, end in zip([0] + bounds, bounds)]
        return torch.cat([F.linear(part, one) for part, one in zip(rows, w.unbind(0))])

    yield ("grouped_linear", f"{tokens * k}x{h}->{h // 2} in {experts}",
           lambda: [randn(tokens * k, h), randn(experts, h // 2, h)], grouped, True)

    def quantize(x):
        blocks = x.view(tokens, -1, 128)
        scale = blocks.abs().amax(-1, keepdim=True).float() / 448
        return (blocks / scale).to(torch.float8_e4m3fn)

    yield "fp8_quantize", name(tokens, h), x, quantize, False

    if dtype == torch.float32:  # in bf16 PyTorch keeps no fp32 master copy: another computation
        count = 10 << 20
        weight = torch.nn.Parameter(torch.randn(count // 256, 256) * 0.02)
        weight.grad = torch.full_like(weight, 0.01)
        adam = torch.optim.AdamW([weight], lr=1e-4, fused=True)
        yield "adam", str(count), lambda: [], adam.step, False
        yield "grad_norm", str(count), lambda: [], lambda: torch.linalg.vector_norm(weight.grad), False


def bodies(make, function, has_backward):
    """What to time, by the name of the pass."""
    inputs = make()

    def forward():
        with torch.no_grad():
            return function(*inputs)

    if not has_backward:
        return {"forward": forward}
    outputs = forward()
    grads = [torch.full_like(y, 0.01) for y in (outputs if isinstance(outputs, tuple) else [outputs])]
    tracked = [x.detach().requires_grad_() for x in inputs]

    def backward():
        return torch.autograd.grad(function(*tracked), tracked, grads)

    return {"forward": forward, "forward+backward": backward}


def overhead(repeat):
    """Nanoseconds per op on one element, over chains of 1000."""
    chain, one, grad = 1000, torch.ones(1), torch.ones(1)

    def run(x, op):
        for _ in range(chain):
            x = op(x)
        return x

    rows = []
    for name, op in [("scale", lambda x: x * 1.0), ("mul", lambda x: x * one)]:
        best = {"forward_ns": float("inf"), "recorded_ns": float("inf"), "backward_ns": float("inf")}
        tracked = torch.ones(1, requires_grad=True)
        for _ in range(10 * repeat):
            times = [time.perf_counter_ns()]
            with torch.no_grad():
                run(one, op)
            times.append(time.perf_counter_ns())
            y = run(tracked, op)
            times.append(time.perf_counter_ns())
            torch.autograd.grad(y, tracked, grad)
            times.append(time.perf_counter_ns())
            for i, key in enumerate(best):
                best[key] = min(best[key], (times[i + 1] - times[i]) / chain)
        rows.append({"op": name, **best})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--filter", default="", help="only what has this in 'op shape dtype'; 'overhead' is one op")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeat", type=int, default=10)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    rows = []
    for dtype_name, dtype in [("fp32", torch.float32), ("bf16", torch.bfloat16)]:
        for op, shape, make, function, has_backward in cases(args.tokens, dtype):
            if args.filter not in f"{op} {shape} {dtype_name}":
                continue
            for name, body in bodies(make, function, has_backward).items():
                seconds = min(measured_seconds(body) for _ in range(args.repeat))
                rows.append({"op": op, "shape": shape, "dtype": dtype_name, "pass": name, "ms": seconds * 1e3})
    result = {"torch": torch.__version__, "threads": args.threads, "ops": rows,
              "overhead": overhead(args.repeat) if args.filter in "overhead" else []}
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
