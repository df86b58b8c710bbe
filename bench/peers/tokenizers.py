#!/usr/bin/env python3
"""Encodes text files with `megatron bench data` and gigatoken in turn; prints medians and ratios.

    tokenizers.py --megatron build/release/bin/megatron --tokenizer tokenizer.json --rounds 5 [--threads 2] FILE...

Needs gigatoken (pip); tokens must agree. Each round starts every program anew, so a first pass knows nothing of the
text. Speeds are MB/s by CPU time of the process times threads, since wall times beside other work say little. With
several threads gigatoken gets the same shares of the text as a batch; ours are cut at the same ends of lines."""
import argparse, json, os, statistics, subprocess, sys

GIGATOKEN = """
import json, sys, time, gigatoken
tokenizer, text, threads = gigatoken.Tokenizer(sys.argv[1]), open(sys.argv[2], "rb").read(), int(sys.argv[3])
shares, rest = [], text
for left in range(threads, 0, -1):
    end = rest.find(b"\\n", len(rest) // left) + 1 if left > 1 else len(rest)
    shares.append(rest[:end])
    rest = rest[end:]
encode = (lambda: tokenizer.encode(text)) if threads == 1 else (lambda: tokenizer.encode_batch(shares, parallel=True))
speeds = []
for _ in range(4):
    begin = time.process_time()
    ids = encode()
    speeds.append(len(text) / 1e6 / (time.process_time() - begin) * threads)
tokens = len(ids) if threads == 1 else sum(len(row) for row in ids)
print(json.dumps([tokens, speeds[0], max(speeds[1:])]))
"""

p = argparse.ArgumentParser()
p.add_argument("--megatron", required=True)
p.add_argument("--tokenizer", required=True)
p.add_argument("--rounds", type=int, default=5)
p.add_argument("--threads", type=int, default=1)
p.add_argument("files", nargs="+")
o = p.parse_args()
rows = {}
for _ in range(o.rounds):
    for path in o.files:
        ours = json.loads(subprocess.run([o.megatron, "bench", "data", "--json", "--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model",
                                          o.tokenizer, "--input", path, "--threads", str(o.threads)], capture_output=True, check=True).stdout)[0]
        theirs = json.loads(subprocess.run([sys.executable, "-c", GIGATOKEN, o.tokenizer, path, str(o.threads)], capture_output=True, check=True,
                                           env={**os.environ, "RAYON_NUM_THREADS": str(o.threads)}).stdout)
        if ours["tokens"] != theirs[0]:
            sys.exit(f"{path}: {ours['tokens']} tokens, gigatoken {theirs[0]}")
        rows.setdefault(path, []).append((ours["first_cpu_mb_s"], theirs[1], ours["later_cpu_mb_s"], theirs[2]))
for path, values in rows.items():
    first, their_first, later, their_later = (statistics.median(v[i] for v in values) for i in range(4))
    print(f"{path}, {o.threads} threads: first {first:.0f} MB/s, gigatoken {their_first:.0f} ({first / their_first:.2f}x); "
          f"later {later:.0f}, gigatoken {their_later:.0f} ({later / their_later:.2f}x); medians of {o.rounds}")
