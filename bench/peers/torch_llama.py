"""What a user would pick instead on one GPU: a decoder in the style of Llama, or of GPT-2, in plain PyTorch.

bf16 parameters, fp32 master weights and Adam moments, fused AdamW, cuDNN attention, clipping, torch.compile. With
--moments bf16 the moments are bf16, and AdamW is one that torch.compile fuses: PyTorch's own has no narrow moments
beside wide weights. Prints one JSON line per case: tokens/s, model TFLOP/s, peak memory, warm-up.
"""
import argparse, json, math, time
import torch, torch.nn as nn, torch.nn.functional as F
from torch.nn.attention import sdpa_kernel, SDPBackend


class RMSNorm(nn.Module):
    def __init__(s, d): super().__init__(); s.w = nn.Parameter(torch.ones(d))
    def forward(s, x): return F.rms_norm(x, (x.shape[-1],), s.w, 1e-5)


def rope(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Block(nn.Module):
    def __init__(s, d, h, kv, hd, f, qkv_bias):
        super().__init__()
        s.h, s.kv, s.hd = h, kv, hd
        s.n1, s.n2 = RMSNorm(d), RMSNorm(d)
        s.qkv = nn.Linear(d, (h + 2 * kv) * hd, bias=qkv_bias)
        s.o = nn.Linear(h * hd, d, bias=False)
        s.gu = nn.Linear(d, 2 * f, bias=False)
        s.dn = nn.Linear(f, d, bias=False)

    def forward(s, x, cos, sin):
        B, T, D = x.shape
        q, k, v = s.qkv(s.n1(x)).split([s.h * s.hd, s.kv * s.hd, s.kv * s.hd], -1)
        q = rope(q.view(B, T, s.h, s.hd), cos, sin).transpose(1, 2)
        k = rope(k.view(B, T, s.kv, s.hd), cos, sin).transpose(1, 2)
        v = v.view(B, T, s.kv, s.hd).transpose(1, 2)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=s.h != s.kv)
        x = x + s.o(a.transpose(1, 2).reshape(B, T, -1))
        g, u = s.gu(s.n2(x)).chunk(2, -1)
        return x + s.dn(F.silu(g) * u)


class Gpt2Block(nn.Module):
    def __init__(s, d, h, kv, hd, f, qkv_bias):
        super().__init__()
        s.h, s.hd = h, hd
        s.n1, s.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        s.qkv, s.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        s.up, s.dn = nn.Linear(d, f), nn.Linear(f, d)

    def forward(s, x, cos, sin):
        B, T, D = x.shape
        q, k, v = (y.view(B, T, s.h, s.hd).transpose(1, 2) for y in s.qkv(s.n1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + s.o(a.transpose(1, 2).reshape(B, T, D))
        return x + s.dn(F.gelu(s.up(s.n2(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(s, V, L, d, h, kv, hd, f, tie, positions=0, qkv_bias=False):
        super().__init__()
        s.e = nn.Embedding(V, d)
        s.p = nn.Embedding(positions, d) if positions else None  # learned positions: GPT-2
        s.b = nn.ModuleList((Gpt2Block if positions else Block)(d, h, kv, hd, f, qkv_bias) for _ in range(L))
        s.n = nn.LayerNorm(d) if positions else RMSNorm(d)
        s.lm = nn.Linear(d, V, bias=False)
        if tie: s.lm.weight = s.e.weight

    def forward(s, t, y, cos, sin):
        x = s.e(t) if s.p is None else s.e(t) + s.p.weight[:t.shape[1]]
        for b in s.b: x = b(x, cos, sin)
        return F.cross_entropy(s.lm(s.n(x)).float().flatten(0, 1), y.flatten())


CASES = {  # V, L, d, heads, kv, head_dim, ffn, tie; what is special: learned positions in the style of GPT-2, or a bias
    "gpt124m": (50304, 12, 768, 12, 12, 64, 2048, True),
    "gpt2_124m": (50304, 12, 768, 12, 12, 64, 3072, True, dict(positions=1024)),
    "llama1b": (128256, 16, 2048, 32, 8, 64, 8192, True),
    "llama8b_16l": (128256, 16, 4096, 32, 8, 128, 14336, False),
    "mcore1.7b": (131072, 24, 2048, 16, 16, 128, 5632, False),
    "qwen2.5_0.5b": (151936, 24, 896, 14, 2, 64, 4864, True, dict(qkv_bias=True)),
    "qwen2.5_1.5b": (151936, 28, 1536, 12, 2, 128, 8960, True, dict(qkv_bias=True)),
}


class NarrowAdamW:
    """AdamW on fp32 weights with moments that are kept in bf16, computed in fp32."""

    def __init__(s, weights, lr, betas, eps=1e-8, decay=1e-2):
        s.weights, s.lr, s.betas, s.eps, s.decay = weights, lr, betas, eps, decay
        s.m, s.v = ([torch.zeros_like(w, dtype=torch.bfloat16) for w in weights] for _ in range(2))
        s.correction = [torch.ones((), device=weights[0].device) for _ in betas]  # tensors: a number would compile anew
        s.taken, s.compiled = 0, torch.compile(s.update, dynamic=True)

    def update(s, w, g, m, v, c1, c2):
        b1, b2 = s.betas
        first = m.float() * b1 + g * (1 - b1)
        second = v.float() * b2 + g * g * (1 - b2)
        m.copy_(first)
        v.copy_(second)
        w.mul_(1 - s.lr * s.decay).sub_(s.lr * (first / c1) / ((second / c2).sqrt() + s.eps))

    @torch.no_grad()
    def step(s):
        s.taken += 1
        for c, beta in zip(s.correction, s.betas): c.fill_(1 - beta ** s.taken)
        for w, m, v in zip(s.weights, s.m, s.v): s.compiled(w, w.grad, m, v, *s.correction)


def flops_per_token(V, L, d, h, kv, hd, f, T, matrices):
    per_layer = 2 * d * (h + 2 * kv) * hd + 2 * h * hd * d + 2 * matrices * d * f
    attn = 2 * 2 * h * hd * T / 2  # causal
    return 3 * (L * (per_layer + attn) + 2 * d * V)


def bench(name, B, T, steps, compile_mode, accum, backend, moments):
    V, L, d, h, kv, hd, f, tie, *special = CASES[name]
    special = special[0] if special else {}
    torch.manual_seed(0)
    dev = "cuda"
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(dev): m = Model(V, L, d, h, kv, hd, f, tie, **special)
    torch.set_default_dtype(torch.float32)
    for p in m.parameters():
        if p.dim() > 1: nn.init.normal_(p, std=0.02)
    master = [p.detach().float().clone() for p in m.parameters()]
    params = list(m.parameters())
    if moments == "bf16": opt = NarrowAdamW(master, lr=1e-4, betas=(.9, .95))
    else: opt = torch.optim.AdamW(master, lr=1e-4, betas=(.9, .95), fused=True)
    pos = torch.arange(T, device=dev).float()
    inv = 1.0 / (500000 ** (torch.arange(0, hd, 2, device=dev).float() / hd))
    ang = pos[:, None] * inv
    cos, sin = ang.cos()[None, :, None].to(torch.bfloat16), ang.sin()[None, :, None].to(torch.bfloat16)
    if compile_mode == "block":
        for i, b in enumerate(m.b): m.b[i] = torch.compile(b)
        fwd = m
    elif compile_mode == "full":
        fwd = torch.compile(m)
    else:
        fwd = m
    g = torch.Generator(device=dev).manual_seed(1)
    data = [torch.randint(0, V, (B, T + 1), device=dev, generator=g) for _ in range(4)]

    def step(i):
        tot = 0
        for a in range(accum):
            t = data[(i * accum + a) % 4]
            loss = fwd(t[:, :-1], t[:, 1:], cos, sin) / accum
            loss.backward()
            tot = tot + loss.detach()
        gs = [p.grad.float() for p in params]
        norm = torch.nn.utils.get_total_norm(gs)
        coef = torch.clamp(1.0 / (norm + 1e-6), max=1.0)
        torch._foreach_mul_(gs, coef)
        for w, gr in zip(master, gs): w.grad = gr
        opt.step()
        with torch.no_grad(): torch._foreach_copy_(params, master)
        for p in params: p.grad = None
        return tot

    with sdpa_kernel([getattr(SDPBackend, backend), SDPBackend.FLASH_ATTENTION], set_priority=True):
        t0 = time.time()
        for i in range(4): l = step(i)
        torch.cuda.synchronize(); warm = time.time() - t0
        torch.cuda.reset_peak_memory_stats()
        ts = []
        for i in range(steps):
            torch.cuda.synchronize(); a = time.perf_counter()
            l = step(i); torch.cuda.synchronize()
            ts.append(time.perf_counter() - a)
    ts.sort(); med = ts[len(ts) // 2]
    tok = B * T * accum
    fl = flops_per_token(V, L, d, h, kv, hd, f, T, 2 if special.get("positions") else 3)
    print(json.dumps(dict(case=name, B=B, T=T, accum=accum, compile=compile_mode, sdpa=backend, moments=moments, loss=round(float(l), 4),
        step_ms=round(med * 1e3, 2), min_ms=round(ts[0] * 1e3, 2), tok_s=round(tok / med), tflops=round(tok * fl / med / 1e12, 1),
        peak_gib=round(torch.cuda.max_memory_allocated() / 2**30, 2), warm_s=round(warm, 1))), flush=True)


def gemm():
    for n, k, mm in [(8192, 8192, 8192), (16384, 4096, 28672), (16384, 14336, 4096), (16384, 2048, 16384), (16384, 4096, 6144), (8192, 2048, 128256)]:
        a = torch.randn(n, k, device="cuda", dtype=torch.bfloat16); b = torch.randn(mm, k, device="cuda", dtype=torch.bfloat16)
        for _ in range(3): a @ b.T
        torch.cuda.synchronize(); s = torch.cuda.Event(True); e = torch.cuda.Event(True); s.record()
        for _ in range(20): a @ b.T
        e.record(); torch.cuda.synchronize(); t = s.elapsed_time(e) / 20e3
        print(json.dumps(dict(gemm=[n, k, mm], tflops=round(2 * n * k * mm / t / 1e12, 1))), flush=True)


def attn():
    for B, H, T, D in [(4, 32, 4096, 128), (2, 32, 8192, 128), (4, 32, 4096, 64), (1, 32, 16384, 128)]:
        q, k, v = (torch.randn(B, H, T, D, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
        for be in ("CUDNN_ATTENTION", "FLASH_ATTENTION"):
            try:
                with sdpa_kernel(getattr(SDPBackend, be)):
                    go = torch.randn_like(q)
                    r = {}
                    for mode in ("fwd", "bwd"):
                        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                        fn = (lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)) if mode == "fwd" else (lambda: torch.autograd.grad(o, (q, k, v), go, retain_graph=True))
                        for _ in range(3): fn()
                        torch.cuda.synchronize(); s = torch.cuda.Event(True); e = torch.cuda.Event(True); s.record()
                        for _ in range(20): fn()
                        e.record(); torch.cuda.synchronize(); t = s.elapsed_time(e) / 20e3
                        fl = 4 * B * H * T * T * D / 2 * (1 if mode == "fwd" else 2.5)
                        r[mode] = round(fl / t / 1e12, 1)
                print(json.dumps(dict(attn=[B, H, T, D], backend=be, **r)), flush=True)
            except Exception as ex:
                print("attn failed", be, str(ex)[:200], flush=True)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--what", default="gemm,attn,train")
    ap.add_argument("--cases", default="gpt124m:32:1024:1,llama1b:4:4096:1,llama1b:8:4096:1,llama8b_16l:2:4096:1,llama8b_16l:4:4096:1,mcore1.7b:4:4096:1")
    ap.add_argument("--compile", default="full,none")
    ap.add_argument("--moments", default="fp32", choices=("fp32", "bf16"))
    ap.add_argument("--sdpa", default="CUDNN_ATTENTION")
    ap.add_argument("--steps", type=int, default=12)
    a = ap.parse_args()
    torch.set_float32_matmul_precision("high")
    if "gemm" in a.what: gemm()
    if "attn" in a.what: attn()
    if "train" in a.what:
        for c in a.cases.split(","):
            n, B, T, ac = c.split(":")
            for cm in a.compile.split(","):
                try:
                    bench(n, int(B), int(T), a.steps, cm, int(ac), a.sdpa, a.moments)
                except Exception as ex:
                    print("FAILED", c, cm, str(ex)[:300], flush=True)
                torch._dynamo.reset(); torch.cuda.empty_cache()
