#!/usr/bin/env python3
"""Runs configurations of Megatron-LM's functional tests through `megatron`.

    run.py CASES.json [--megatron ./megatron] [--only PART | --list FILE] [--stage show|train|resume|infer] [--files DIR] [--json]
           [--exceptions FILE]

show    each configuration as it is: `megatron config show` accepts it whole
train   scaled down (short sequences, narrow layers, the same layout, data and features): three iterations with finite losses
resume  train, stopped after two of four iterations and started again: the metrics of the run that was not stopped, bitwise
rl      the cases of reinforcement learning: two iterations on prompts whose answers are rewarded, with finite losses and rewards
infer   the inference cases: a scaled checkpoint is trained for one iteration, then `generate` with the case's flags gives as many
        tokens as asked for, the same as without the engine's options (greedy, or drawn by the same seed where the case samples)

--list names cases, one a line; --exceptions those that need not hold ("name<TAB>stages<TAB>owner<TAB>reason"), of which none may hold.

Data and tokenizers are small files given by --files DIR (text.bin/.idx, vocab.json, merges.txt, tokenizer.model, …); without it
the data flags become --mock-data with a NullTokenizer. Ranks are threads on the CPU. Needs Python alone."""
import argparse, collections, json, math, os, re, shutil, subprocess, sys, tempfile

p = argparse.ArgumentParser()
p.add_argument("cases"); p.add_argument("--megatron", default="./megatron"); p.add_argument("--only", default="")
p.add_argument("--stage", default="show"); p.add_argument("--json", action="store_true"); p.add_argument("--files")
p.add_argument("--timeout", type=int, default=300); p.add_argument("--list"); p.add_argument("--exceptions")
o = p.parse_args()
TMP = tempfile.mkdtemp(prefix="functional")
LISTED = {x.strip() for x in open(o.list) if x.strip() and x[0] != "#"} if o.list else None
EXCEPTED = {x.split("\t")[0] for x in open(o.exceptions) if x[0] != "#" and o.stage in x.split("\t")[1].split(",")} if o.exceptions else set()


def number(d, k, default):
    try:
        return int(d[k][0]) if k in d else default
    except (ValueError, IndexError):
        return default


def world(d):
    model = number(d, "--tensor-model-parallel-size", 1) * number(d, "--pipeline-model-parallel-size", 1) * number(d, "--context-parallel-size", 1)
    expert = number(d, "--expert-model-parallel-size", 1) * number(d, "--expert-tensor-parallel-size", number(d, "--tensor-model-parallel-size", 1)) * number(d, "--pipeline-model-parallel-size", 1)
    least = math.lcm(model, expert)
    return least * max(1, 8 // least)


PLACES = {"--data-cache-path": "cache", "--save": "ckpt", "--load": "ckpt", "--tensorboard-dir": "tb", "--wandb-save-dir": "wandb", "--non-persistent-local-ckpt-dir": "local"}
DATA = ("--data-path", "--train-data-path", "--valid-data-path", "--test-data-path", "--per-split-data-args-path", "--mock-data")
TOKENIZERS = ("--tokenizer-type", "--tokenizer-model", "--vocab-file", "--merge-file", "--tiktoken-pattern", "--vocab-size")
UNSET = re.compile(r"\$\{?\w+\}?")


def real_files(d, where, family):
    """Values that name a place of the machine the tests ran on become places here."""
    d = collections.OrderedDict(d)
    if o.files and "--mock-data" not in d:
        bert = family in ("bert", "t5")
        d["--data-path"] = [f"{o.files}/{'sentences' if bert else 'text'}_document"]
        if family == "mimo":
            d["--data-path"] = [f"{o.files}/images.tar"]
            d["--split"] = ["8,1,1"]  # the files of these cases are split beforehand
        if UNSET.search(d.get("--tokenizer-type", [""])[0]):
            d["--tokenizer-type"] = ["TikTokenizer" if "--tiktoken-pattern" in d else "HuggingFaceTokenizer"]
        kind = d.get("--tokenizer-type", ["BertWordPieceLowerCase" if bert else "GPT2BPETokenizer"])[0]
        if "--vocab-file" in d:
            d["--vocab-file"] = [f"{o.files}/{'bert-vocab.txt' if kind.startswith('Bert') else 'vocab.json'}"]
        if "--merge-file" in d:
            d["--merge-file"] = [f"{o.files}/merges.txt"]
        if "--tokenizer-model" in d:
            d["--tokenizer-model"] = [f"{o.files}/" + {"TikTokenizer": "vocab.tiktoken.json", "HuggingFaceTokenizer": "tokenizer.json"}.get(kind, "tokenizer.model")]
    else:
        for k in (*DATA, *TOKENIZERS):
            d.pop(k, None)
        d["--mock-data"], d["--tokenizer-type"], d["--vocab-size"] = [], ["NullTokenizer"], ["1023"]
        d.pop("--vocab-extra-ids", None)
        if family in ("bert", "t5"):
            d["--model-type"] = [family]
    if "--export-kd-cfg" in d:
        d["--export-kd-cfg"] = [f"{where}/distill.yaml"]
        open(f"{where}/distill.yaml", "w").write("logit_layers: [output_layer, output_layer]\nskip_lm_loss: false\nkd_loss_scale: 10.0\n")
    for k in list(d):
        if k in PLACES:
            d[k] = [f"{where}/{PLACES[k]}"]
        elif any(UNSET.search(v) for v in d[k]):
            d[k] = ["1234"] if k == "--seed" else [UNSET.sub("x", v) for v in d[k]]
    return d


WIDTHS = {"--emb-int-list": "--hidden-size", "--mlp-int-list": "--ffn-hidden-size", "--mamba-int-list": "--mamba-num-heads", "--moe-expert-int-list": "--num-experts"}


def scaled(d, iters):
    tp, pp, cp = (number(d, f"--{x}-parallel-size", 1) for x in ("tensor-model", "pipeline-model", "context"))
    heads = number(d, "--num-attention-heads", 8)
    if heads > 16 and heads % 8 == 0 and tp <= 8:
        groups = number(d, "--num-query-groups", heads)
        heads, new = 16, max(tp, min(groups, 16))
        d["--num-attention-heads"] = ["16"]
        if "--num-query-groups" in d:
            d["--num-query-groups"] = [str(new if 16 % new == 0 else tp)]
    hidden = max(64, heads * 8)
    small = {"--hidden-size": hidden, "--kv-channels": 8, "--ffn-hidden-size": 2 * hidden, "--moe-ffn-hidden-size": 64, "--moe-shared-expert-intermediate-size": 64,
             "--qk-head-dim": 16, "--qk-pos-emb-head-dim": 8, "--v-head-dim": 16, "--q-lora-rank": 32, "--kv-lora-rank": 32, "--moe-latent-size": 32,
             "--mamba-head-dim": 8, "--mamba-state-dim": 16, "--linear-key-head-dim": 8, "--linear-value-head-dim": 8, "--mup-base-hidden-size": 32,
             "--seq-length": 64, "--max-position-embeddings": 64, "--encoder-seq-length": 64, "--decoder-seq-length": 32, "--inference-max-seq-length": 64,
             "--train-iters": iters, "--lr-decay-iters": iters, "--lr-warmup-iters": 0, "--eval-interval": 2, "--eval-iters": 1, "--save-interval": 1000, "--log-interval": 1}
    if "--img-h" in d:
        d["--img-h"] = d["--img-w"] = ["28"]
    if d.get("--model-provider") == ["llava_vlm"]:
        d.update({"--vision-image-size": ["28"], "--vision-num-layers": ["2"], "--vision-hidden-size": ["32"], "--vision-num-attention-heads": ["4"], "--vision-ffn-hidden-size": ["64"]})
    whole = {k: number(d, size, 0) for k, size in WIDTHS.items() if k in d}
    for k, v in small.items():
        if k in d:
            d[k] = [str(v)]
    chunks = number(d, "--num-virtual-stages-per-pipeline-rank", 0) or (number(d, "--num-layers", 0) // pp // number(d, "--num-layers-per-virtual-pipeline-stage", 1) if "--num-layers-per-virtual-pipeline-stage" in d else 1)
    plain = not any(k in d for k in ("--hybrid-layer-pattern", "--pipeline-model-parallel-layout", "--moe-layer-freq", "--linear-attention-freq", "--decoder-first-pipeline-num-layers"))
    if plain and number(d, "--num-layers", 0) > 16:
        layers = 2 * pp * min(chunks, 2)
        d["--num-layers"] = [str(layers)]
        if "--num-layers-per-virtual-pipeline-stage" in d:
            d["--num-layers-per-virtual-pipeline-stage"] = ["1"] if chunks > 1 else [str(layers // pp)]
    if "--hybrid-layer-pattern" in d:
        first, *ahead = d["--hybrid-layer-pattern"][0].split("/")
        if "|" not in first and len(first) > 14:
            d["--hybrid-layer-pattern"] = ["/".join([first[:14], *ahead])]
            if "--num-layers" in d:
                d["--num-layers"] = ["14"]
    most = max(4 * number(d, "--expert-model-parallel-size", 1), number(d, "--moe-router-topk", 1) * 2)
    if number(d, "--num-experts", 0) > most and "--moe-router-num-groups" not in d:
        d["--num-experts"] = [str(most)]
    for k, was in whole.items():  # the same shares of the narrower model
        d[k] = [str(int(v) * number(d, WIDTHS[k], 0) // was) for v in d[k]]
    mb = min(2, number(d, "--micro-batch-size", 1))
    batch = mb * max(1, world(d) // (tp * pp * cp)) * max(2, pp, 2 * number(d, "--microbatch-group-size-per-virtual-pipeline-stage", 1))
    if "--hybrid-layer-pattern" in d or "--hybrid-override-pattern" in d or "--is-hybrid-model" in d:
        d["--mamba-head-dim"] = ["8"]
    d["--micro-batch-size"], d["--global-batch-size"] = [str(mb)], [str(batch)]
    for k in ("--step-batch-size-schedule", "--rampup-batch-size", "--exit-interval", "--lr-warmup-samples", "--lr-decay-samples", "--lr-wsd-decay-samples", "--eval-global-batch-size", "--train-samples", "--window-size"):
        if k in d and k == "--train-samples":
            d["--train-iters"] = [str(iters)]
        if k in d and k == "--lr-wsd-decay-samples":
            d["--lr-wsd-decay-iters"] = ["1"]
        d.pop(k, None)
    d["--device"] = ["cpu"]
    return d


ENGINE = re.compile(r"--(inference|incoming|output|prompt|num-tokens|return|top|temperature|termination|enable-|decode-|cuda-graph|flash-decode|use-legacy|use-flashinfer|use-coordinator|stop-words|skip-prompt|suspend|rl-|no-rl-|moe-pad|moe-enable-routing|no-record|max-tokens|batch-|micro-batch-size-for|model-provider|mamba-inference|async-mode|drain|refit)")
TRAINING = {"--lr": ["1e-3"], "--train-iters": ["1"], "--lr-decay-style": ["constant"]}


SIZES = {"--hybrid-layer-pattern": ["ME*EM"], "--num-layers": ["5"], "--hidden-size": ["64"], "--num-attention-heads": ["8"], "--ffn-hidden-size": ["128"],
         "--mamba-head-dim": ["8"], "--mamba-state-dim": ["16"], "--mamba-num-heads": ["8"], "--mamba-num-groups": ["1"], "--num-experts": ["16"], "--moe-router-topk": ["2"],
         "--moe-ffn-hidden-size": ["64"], "--moe-token-dispatcher-type": ["alltoall"], "--is-hybrid-model": [], "--seq-length": ["64"], "--max-position-embeddings": ["64"],
         "--position-embedding-type": ["none"], "--normalization": ["RMSNorm"], "--disable-bias-linear": [], "--moe-aux-loss-coeff": ["0"]}


def infer(d, where, ranks):
    """None, or what went wrong."""
    d = scaled(d, 1)
    d["--num-tokens-to-generate"] = ["8"]
    model = collections.OrderedDict((k, v) for k, v in d.items() if not ENGINE.match(k) and k not in ("--load", "--use-checkpoint-args", "--no-load-optim"))
    if "--use-checkpoint-args" in d and "--hidden-size" not in d:  # the sizes are the checkpoint's: of a small hybrid with experts
        model.update(SIZES)
    rc, _, err = megatron(["pretrain", *flat({**model, **TRAINING}), *ranks, "--save", f"{where}/ckpt"])
    if rc:
        return why(err)
    d["--load"] = [f"{where}/ckpt"]
    if "--prompt-file" in d:
        open(f"{where}/prompts.jsonl", "w").writelines(json.dumps({"text": f"The train number {i} left at"}) + "\n" for i in range(12))
        d["--prompt-file"] = [f"{where}/prompts.jsonl"]
    d["--output-path"] = [f"{where}/out.json"]
    texts = []
    greedy = d.get("--top_k") == ["1"] or not any(k in d for k in ("--temperature", "--top_k", "--top_p"))
    choice = {"--top_k": ["1"]} if greedy else {k: d[k] for k in ("--temperature", "--top_k", "--top_p", "--seed") if k in d}
    for flags in (d, {k: v for k, v in d.items() if not ENGINE.match(k) or k in ("--prompts", "--prompt-file", "--num-tokens-to-generate", "--inference-max-seq-length", "--termination-id")} | choice):
        rc, out, err = megatron(["generate", *flat(flags), *ranks, "--ignore-eos", "--json"])
        if rc:
            return why(err)
        texts.append([json.loads(x)["ids"] for x in out.splitlines() if x.startswith("{")])
    if not texts[0] or any(len(x) != 8 for x in texts[0]):
        return [f"tokens generated: {[len(x) for x in texts[0]][:8]} instead of 8 each"]
    return None if texts[0] == texts[1] else ["the engine's options change tokens"]


def rl(d, where, ranks):
    """None, or what went wrong."""
    d = scaled(d, 2)
    d.pop("--load", None)
    with open(f"{where}/tasks.jsonl", "w") as tasks:
        tasks.writelines(json.dumps({"prompt": f"{i} 7", "answer": "[02468]"}) + "\n" for i in range(16))
    with open(f"{where}/environments.yaml", "w") as environments:
        environments.write(f"- agent_type: JsonlAgent\n  agent_args: {{dataset_file: {where}/tasks.jsonl, rule: regex}}\n  weight: 1\n")
    d["--langrl-env-config"], d["--rl-prompts-per-eval"] = [f"{where}/environments.yaml"], ["4"]
    d["--train-iters"] = ["2"]
    d.setdefault("--lr-decay-style", ["constant"])
    m = f"{where}/m.jsonl"
    rc, _, err = megatron(["pretrain", *flat(d), *ranks, "--metrics", m])
    if rc:
        return why(err)
    got = rows(m)
    fine = all(math.isfinite(r["lm_loss"]) and 0 <= r["rl/mean_reward"] <= 1 and r["rl/mean_answer_tokens"] >= 1 for r in got.values())
    return None if len(got) == 2 and fine else [f"{len(got)} of 2 iterations: {list(got.values())}"]


def flat(d):
    return [x for k, v in d.items() for x in (k, *v)]


def with_teacher(d, where, ranks):
    """None, or what went wrong. The teacher, which learns for one iteration, is wider than the student unless the student was made from it."""
    d["--export-kd-teacher-load"] = [f"{where}/teacher"]
    made_from_it = "--export-model-type" in d
    learns = collections.OrderedDict((k, v) for k, v in d.items() if not k.startswith("--export-kd") and k not in ("--save", "--load", "--exit-interval"))
    learns.update(TRAINING | {"--seed": ["4321"]} | ({} if made_from_it else {"--hidden-size": [str(2 * number(d, "--hidden-size", 64))]}))
    rc, _, err = megatron(["pretrain", *flat(learns), *ranks, "--save", f"{where}/teacher"])
    if rc:
        return why(err)
    if made_from_it:  # the checkpoint that Megatron-LM's case begins with says how it is rounded; here a flag does
        d["--load"], d["--export-quant-cfg"] = [f"{where}/teacher"], ["NVFP4_DEFAULT_CFG"]
    return None


def megatron(args):
    try:
        r = subprocess.run([o.megatron, *map(str, args)], capture_output=True, text=True, timeout=o.timeout)
        return r.returncode, r.stdout, r.stderr
    except subprocess.TimeoutExpired:
        return 124, "", f"no answer in {o.timeout} s"


def rows(path):
    return {r["iteration"]: r for r in map(json.loads, open(path))}


def why(err):
    lines = [x.strip() for x in err.splitlines() if x.strip() and "configuration was refused" not in x]
    return lines or ["no message"]


MODES = {"infer": ("inference",), "rl": ("rl",)}
results, reasons = {}, collections.Counter()
for case in json.load(open(o.cases)):
    if LISTED is not None and case["name"] not in LISTED:
        continue
    if o.only not in case["name"] or not case["args"] or case["mode"] not in MODES.get(o.stage, ("", "pretraining")):
        continue
    where = f"{TMP}/{len(results)}"
    os.makedirs(where)
    d = real_files(collections.OrderedDict((a[0], a[1:]) for a in case["args"]), where, case["family"])
    ranks = ["--ranks", world(d)]
    if o.stage == "show":
        rc, _, err = megatron(["config", "show", *flat(d), *ranks])
        problem = None if rc == 0 else why(err)
    elif o.stage == "infer":
        problem = infer(d, where, ranks)
    elif o.stage == "rl":
        problem = rl(d, where, ranks)
    else:
        iters = 4 if o.stage == "resume" else 3
        d = scaled(d, iters)
        d.pop("--load", None)
        save = d.pop("--save", [f"{where}/ckpt"])
        m = f"{where}/m.jsonl"
        problem = with_teacher(d, where, ranks) if "--export-kd-teacher-load" in d else None
        if not problem:
            rc, _, err = megatron(["pretrain", *flat(d), *ranks, "--metrics", m, *(["--save", *save] if o.stage == "train" else [])])
            problem = why(err) if rc else None
        if not problem:
            full = rows(m)
            if len(full) != iters or not all(math.isfinite(r["lm_loss"]) for r in full.values()):
                problem = [f"{len(full)} of {iters} iterations, losses {[r['lm_loss'] for r in full.values()]}"]
        if not problem and o.stage == "resume":
            for extra in (["--exit-interval", 2], ["--load", *save]):
                rc, _, err = megatron(["pretrain", *flat(d), *ranks, "--metrics", m + "2", "--save", *save, *extra])
                if rc:
                    problem = why(err)
                    break
            if not problem:
                got = rows(m + "2")
                same = sum(got.get(i, {}).get("lm_loss") == r["lm_loss"] and got[i].get("grad_norm") == r["grad_norm"] for i, r in full.items())
                problem = None if same == iters else [f"{same} of {iters} iterations are the same"]
    results[case["name"]] = problem
    for x in problem or []:
        reasons[re.sub(r" = .*?\((--[\w-]+).*?\):", r" (\1):", x)[:150]] += 1
    shutil.rmtree(where, ignore_errors=True)
    if not o.json:
        print(("ok   " if not problem else "FAIL ") + case["name"] + ("" if not problem else ": " + problem[0][:160]), flush=True)
shutil.rmtree(TMP, ignore_errors=True)
good = sum(v is None for v in results.values())
if o.json:
    print(json.dumps({"passed": good, "of": len(results), "results": results}, indent=1))
else:
    print("\nreasons, most frequent first:")
    for k, n in reasons.most_common(60):
        print(f"{n:5} {k}")
    print(f"{good}/{len(results)} hold")
missing = (LISTED or set()) - set(results)
wrong = [k for k, v in results.items() if (v is None) == (k in EXCEPTED)] + sorted(missing)
for k in wrong:
    print(k, "is not among the cases" if k in missing else "holds although it is excepted" if results[k] is None else "does not hold", file=sys.stderr)
sys.exit(1 if wrong else 0)
