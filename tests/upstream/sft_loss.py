#!/usr/bin/env python3
"""Fine-tunes a small model on conversations with `megatron finetune --sft` and with transformers; losses must agree.

    sft_loss.py --megatron build/release/bin/megatron [--keep DIR]

transformers renders each conversation with its chat template, takes the assistant's tokens from the template's
generation blocks, and trains with torch's AdamW in fp32, ten steps. We read the same JSON lines on one rank and on
TP2 x PP2, with each kind of packing. --keep leaves model, rows and losses in DIR, as tests/golden/sft has them."""
import argparse, contextlib, json, pathlib, random, subprocess, sys, tempfile

try:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
except ImportError:
    print("torch or transformers is not installed: NOTHING was tested")
    sys.exit(77)

STEPS, ROWS, BATCH, LENGTH, TOLERANCE = 10, 24, 6, 96, 1e-5
OPTIMIZER = dict(lr=2e-3, betas=(0.9, 0.95), eps=1e-8)
DECAY = 0.1
TEMPLATE = """{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>
{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}{{ eos_token }}{% endgeneration %}
{% else %}{{ message['content'] }}
{% endif %}{% endfor %}"""
WORDS = ("the of and model layer token loss tensor rank batch gradient pipeline naïve Straße 世界 числа 42 7 100 3.5 "
         "hello world what why how because answer question yes no maybe").split()


def make_rows(rnd):
    """Conversations of one to three turns, some with a system text; the longest is cut at the sequence's end."""
    def text(most):
        return " ".join(rnd.choice(WORDS) for _ in range(rnd.randint(1, most))) + rnd.choice(["", ".", "?", "\n"])

    rows = []
    for i in range(ROWS):
        messages = [{"role": "system", "content": text(4)}] if i % 3 == 0 else []
        for _ in range(rnd.randint(1, 3)):
            messages += [{"role": "user", "content": text(6)}, {"role": "assistant", "content": text(8)}]
        rows.append({"messages": messages})
    rows[5]["messages"][-1]["content"] = text(8) * 8
    return rows


def make_model(folder, rows):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>"]
    trainer = trainers.BpeTrainer(vocab_size=352, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tok.train_from_iterator([m["content"] for row in rows for m in row["messages"]], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tok, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(1234)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=352, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                                         num_key_value_heads=2, max_position_embeddings=LENGTH, tie_word_embeddings=False, bos_token_id=0,
                                         eos_token_id=1, attn_implementation="eager", dtype="float32"))
    with torch.no_grad():
        for parameter in model.parameters():  # larger than usual, so that attention and norms matter
            if parameter.dim() > 1:
                parameter.mul_(4)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


def encode(tokenizer, row):
    out = tokenizer.apply_chat_template(row["messages"], tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    ids, mask = out["input_ids"][: LENGTH + 1], out["assistant_masks"][: LENGTH + 1]
    labels = [i if m else -100 for i, m in zip(ids, mask)]
    return torch.tensor([ids]), torch.tensor([labels])


def transformers_losses(folder, tokenizer, rows, batch):
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([dict(params=matrices, weight_decay=DECAY), dict(params=others, weight_decay=0.0)], **OPTIMIZER)
    encoded = [encode(tokenizer, row) for row in rows]
    losses = []
    for step in range(STEPS):
        chosen = [encoded[(step * batch + i) % len(rows)] for i in range(batch)]
        count = sum(int((labels[:, 1:] != -100).sum()) for _, labels in chosen)
        total = 0.0
        for ids, labels in chosen:
            # The last token predicts nothing, so the sequence has at most LENGTH inputs.
            loss = model(input_ids=ids, labels=labels, num_items_in_batch=torch.tensor(count)).loss if ids.shape[1] <= LENGTH else \
                torch.nn.functional.cross_entropy(model(input_ids=ids[:, :-1]).logits[0].float(), labels[0, 1:], reduction="sum") / count
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


def our_losses(megatron, folder, rows, batch, packing, layout, metadata=None):
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as metrics:
        micro = 1 if packing == "offline" else 2
        arguments = ["--hf", str(folder), "--sft", "--data-path", str(rows), "--split", "1,0,0", "--tokenizer-type", "HuggingFaceTokenizer",
                     "--tokenizer-model", str(folder), "--seq-length", str(LENGTH), "--packing", packing, "--micro-batch-size", str(micro),
                     "--global-batch-size", str(batch), "--train-iters", str(STEPS), "--lr", str(OPTIMIZER["lr"]), "--lr-decay-style", "constant",
                     "--adam-beta1", "0.9", "--adam-beta2", "0.95", "--adam-eps", "1e-8", "--weight-decay", str(DECAY), "--clip-grad", "1.0",
                     "--device", "cpu", "--eval-iters", "0", "--log-interval", "1", "--metrics", metrics.name, *layout]
        if metadata:
            arguments += ["--packed-metadata", str(metadata)]
        done = subprocess.run([megatron, "finetune", *arguments], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"finetune --packing {packing} {' '.join(layout)} ended with {done.returncode}:\n{done.stderr}")
        return [json.loads(line)["lm_loss"] for line in open(metrics.name)]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--megatron", required=True)
    p.add_argument("--keep")
    o = p.parse_args()
    torch.set_num_threads(1)
    rows = make_rows(random.Random(7))
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(o.keep or stack.enter_context(tempfile.TemporaryDirectory()))
        model, lines = folder / "model", folder / "rows.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        lines.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        tokenizer = make_model(model, rows)
        # Offline packing puts rows into bins in an order of its own: there a step reads all of them.
        expected = {"none": transformers_losses(model, tokenizer, rows, BATCH), "offline": transformers_losses(model, tokenizer, rows, ROWS)}
        expected["batch"] = expected["none"]
        (folder / "losses.json").write_text(json.dumps({"rows_of_a_step": {"some": BATCH, "all": ROWS}, "some": expected["none"], "all": expected["offline"]}, indent=1) + "\n")
        metadata = stack.enter_context(tempfile.NamedTemporaryFile(suffix=".json")).name
        our_losses(o.megatron, model, lines, 1, "offline", [], metadata)
        bins = round(ROWS / json.load(open(metadata))[0]["packing_factor"])
        worst = 0.0
        for layout in ([], "--ranks 4 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2".split()):
            for packing in ("none", "batch", "offline"):
                ours = our_losses(o.megatron, model, lines, bins if packing == "offline" else BATCH, packing, layout)
                far = max(abs(a - b) for a, b in zip(ours, expected[packing], strict=True))
                worst = max(worst, far)
                print(f"{'TP2 x PP2' if layout else 'one rank'}, --packing {packing}: {STEPS} steps, loss {ours[0]:.6f} to {ours[-1]:.6f}, "
                      f"largest difference {far:.1e}", flush=True)
        print(f"largest difference {worst:.1e} ({'within' if worst <= TOLERANCE else 'BEYOND'} {TOLERANCE:.0e})")
        sys.exit(worst > TOLERANCE)


main()
