"""Do we learn what PyTorch learns? Both start from the same weights and see the same text in the same order.

  losses.py prepare DIR     text.safetensors (tokens [steps, batch, length + 1]) and a Llama in Hugging Face's format
  losses.py train DIR       trains torch_llama.py's model on it: DIR/torch.jsonl
  losses.py compare A B     two files of losses: the largest and the mean relative difference
  losses.py table DIR S…    what losses.sh left in DIR for the seeds S: each recipe against bf16

Between `train` and `compare`, ours (always with --bf16; again with --fp8-format hybrid --fp8-recipe tensorwise, or delayed, or with
--fp8-format e4m3 --fp8-recipe blockwise):
  megatron pretrain --hf DIR --replay DIR/text.safetensors:tokens --bf16 --metrics DIR/ours.jsonl …
"""
import glob, json, os, sys
import torch
from safetensors.torch import load_file, save_file

STEPS, BATCH, LENGTH, LR = int(os.environ.get("STEPS", 500)), int(os.environ.get("BATCH", 8)), 1024, 3e-4
SEED = int(os.environ.get("SEED", 0))
V, L, D, H, KV, HD, F = 50304, 12, 768, 12, 12, 64, 2048


def prepare(folder):
    os.makedirs(folder, exist_ok=True)
    need, text = STEPS * BATCH * (LENGTH + 1), b""
    for library in (os, torch):
        for file in sorted(glob.glob(os.path.dirname(library.__file__) + "/**/*.py", recursive=True)):
            if len(text) < need: text += open(file, "rb").read()
    assert len(text) >= need, f"{len(text)} bytes of text, {need} are needed"
    tokens = torch.frombuffer(bytearray(text[:need]), dtype=torch.uint8).to(torch.int32)
    order = torch.randperm(STEPS * BATCH, generator=torch.Generator().manual_seed(SEED + 1))
    tokens = tokens.view(STEPS * BATCH, LENGTH + 1)[order].view(STEPS, BATCH, LENGTH + 1).contiguous()
    save_file({"tokens": tokens}, folder + "/text.safetensors")
    generator = torch.Generator().manual_seed(SEED)
    weights = {}

    def normal(name, *shape): weights[name] = (0.02 * torch.randn(*shape, generator=generator)).to(torch.bfloat16)
    def ones(name): weights[name] = torch.ones(D, dtype=torch.bfloat16)

    normal("model.embed_tokens.weight", V, D)
    for i in range(L):
        at = f"model.layers.{i}."
        for name, heads in (("q", H), ("k", KV), ("v", KV)): normal(f"{at}self_attn.{name}_proj.weight", heads * HD, D)
        normal(at + "self_attn.o_proj.weight", D, H * HD)
        normal(at + "mlp.gate_proj.weight", F, D)
        normal(at + "mlp.up_proj.weight", F, D)
        normal(at + "mlp.down_proj.weight", D, F)
        ones(at + "input_layernorm.weight")
        ones(at + "post_attention_layernorm.weight")
    ones("model.norm.weight")
    save_file(weights, folder + "/model.safetensors", metadata={"format": "pt"})
    json.dump(dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=D, intermediate_size=F,
                   num_hidden_layers=L, num_attention_heads=H, num_key_value_heads=KV, head_dim=HD, vocab_size=V,
                   max_position_embeddings=LENGTH, rms_norm_eps=1e-5, rope_theta=500000.0, tie_word_embeddings=True,
                   torch_dtype="bfloat16", hidden_act="silu", attention_bias=False, mlp_bias=False),
              open(folder + "/config.json", "w"))


def train(folder):
    import torch_llama
    weights, tokens = load_file(folder + "/model.safetensors", "cuda"), load_file(folder + "/text.safetensors")["tokens"]
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"): model = torch_llama.Model(V, L, D, H, KV, HD, F, True)
    torch.set_default_dtype(torch.float32)
    state = {"e.weight": weights["model.embed_tokens.weight"], "n.w": weights["model.norm.weight"]}
    for i in range(L):
        at = lambda name: weights[f"model.layers.{i}.{name}.weight"]
        state |= {f"b.{i}.qkv.weight": torch.cat([at(f"self_attn.{n}_proj") for n in "qkv"]),
                  f"b.{i}.o.weight": at("self_attn.o_proj"), f"b.{i}.dn.weight": at("mlp.down_proj"),
                  f"b.{i}.gu.weight": torch.cat([at("mlp.gate_proj"), at("mlp.up_proj")]),
                  f"b.{i}.n1.w": at("input_layernorm"), f"b.{i}.n2.w": at("post_attention_layernorm")}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and missing == ["lm.weight"], (missing, unexpected)
    params = list(model.parameters())
    master = [p.detach().float().clone() for p in params]
    groups = [dict(params=[m for m in master if m.dim() > 1], weight_decay=0.1),
              dict(params=[m for m in master if m.dim() == 1], weight_decay=0.0)]
    adam = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95), fused=True)
    angle = torch.arange(LENGTH, device="cuda").float()[:, None] / (500000 ** (torch.arange(0, HD, 2, device="cuda").float() / HD))
    cos, sin = (f(angle)[None, :, None].to(torch.bfloat16) for f in (torch.cos, torch.sin))
    with open(folder + "/torch.jsonl", "w") as out:
        for step in range(STEPS):
            t = tokens[step].cuda().long()
            loss = model(t[:, :-1], t[:, 1:], cos, sin)
            loss.backward()
            gradients = [p.grad.float() for p in params]
            torch._foreach_mul_(gradients, torch.clamp(1.0 / (torch.nn.utils.get_total_norm(gradients) + 1e-6), max=1.0))
            for m, g in zip(master, gradients): m.grad = g
            adam.step()
            with torch.no_grad(): torch._foreach_copy_(params, master)
            for p in params: p.grad = None
            out.write(json.dumps(dict(iteration=step + 1, loss=float(loss))) + "\n")


def losses(file):
    rows = [json.loads(line) for line in open(file)]
    return [next(r[k] for k in ("loss", "lm loss", "lm_loss") if k in r) for r in rows]


def compare(a, b):
    x, y = losses(a), losses(b)
    n = min(len(x), len(y))
    for first, last in ((0, 50), (50, n)):
        d = [abs(p - q) / q for p, q in zip(x[first:min(last, n)], y[first:min(last, n)])]
        if d: print(f"steps {first + 1}–{min(last, n)}: largest difference {max(d):.2e}, mean {sum(d) / len(d):.2e}")
    tail = max(1, n // 10)
    ends = [sum(v[n - tail:n]) / tail for v in (x, y)]
    print(f"mean of the last {tail} losses: {ends[0]:.4f} and {ends[1]:.4f}, ratio {ends[0] / ends[1]:.4f}")


def table(folder, *seeds):
    print(f"{'recipe':12} {'seed':>4}  mean difference of steps 1–20, 21–100, 101–end   mean of the last tenth, its ratio to bf16")
    for name in ("bf16", "bf16-again", "tensorwise", "delayed", "blockwise"):
        ratios = []
        for seed in seeds:
            x, y = (losses(f"{folder}/{seed}/{n}.jsonl") for n in (name, "bf16"))
            d = [abs(p - q) / q for p, q in zip(x, y)]
            means = [sum(part) / max(1, len(part)) for part in (d[:20], d[20:100], d[100:])]
            tail = max(1, len(x) // 10)
            ratios.append(sum(x[-tail:]) / sum(y[-tail:]))
            print(f"{name:12} {seed:>4}  " + "  ".join(f"{m:.1e}" for m in means) +
                  f"   {sum(x[-tail:]) / tail:.4f}  {ratios[-1]:.4f}")
        print(f"{name:12}  all  ratio {min(ratios):.4f} to {max(ratios):.4f}, mean {sum(ratios) / len(ratios):.4f}")


if __name__ == "__main__":
    {"prepare": prepare, "train": train, "compare": compare, "table": table}[sys.argv[1]](*sys.argv[2:])
