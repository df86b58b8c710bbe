#!/usr/bin/env python3
"""Trains a tiny model and reads its event files with TensorBoard's own reader.

    tensorboard_check.py --megatron build/release/bin/megatron

Two starts of one run give one set of curves; every value of --metrics is there, rounded to float32."""
import argparse, json, os, struct, subprocess, sys, tempfile

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

p = argparse.ArgumentParser()
p.add_argument("--megatron", required=True)
o = p.parse_args()

MODEL = """--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 16 --max-position-embeddings 16 --vocab-size 64
    --micro-batch-size 1 --global-batch-size 4 --lr 1e-3 --mock-data --device cpu --ranks 2 --tensor-model-parallel-size 2
    --log-interval 2 --eval-interval 2 --eval-iters 1 --log-timers-to-tensorboard --log-memory-to-tensorboard
    --log-validation-ppl-to-tensorboard --timing-log-level 2""".split()


def float32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


with tempfile.TemporaryDirectory() as folder:
    for iterations in ("3", "6"):  # the second start goes on
        places = ["--save", f"{folder}/ckpt", "--load", f"{folder}/ckpt", "--tensorboard-dir", f"{folder}/tb", "--metrics", f"{folder}/m.jsonl"]
        subprocess.run([o.megatron, "pretrain", *MODEL, "--train-iters", iterations, "--lr-decay-iters", "6", *places], check=True, stdout=subprocess.DEVNULL)
    rows = {r["iteration"]: r for r in map(json.loads, open(f"{folder}/m.jsonl"))}
    assert len(os.listdir(f"{folder}/tb")) == 2, os.listdir(f"{folder}/tb")
    events = EventAccumulator(f"{folder}/tb", size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    tags = set(events.Tags()["scalars"])
    wanted = {"learning-rate", "batch-size", "lm loss", "loss-scale", "grad-norm", "mem-allocated-bytes", "iteration-time", "forward-backward-time",
              "lm loss validation", "lm loss validation ppl"}
    assert wanted <= tags, wanted - tags
    for tag, key in (("lm loss", "lm_loss"), ("grad-norm", "grad_norm"), ("learning-rate", "learning_rate")):
        assert {e.step: e.value for e in events.Scalars(tag)} == {i: float32(r[key]) for i, r in rows.items()}, tag
        assert {e.step: e.value for e in events.Scalars(tag + " vs samples")} == {r["consumed_samples"]: float32(r[key]) for r in rows.values()}, tag
    assert all(abs(e.wall_time - os.path.getmtime(f"{folder}/m.jsonl")) < 600 for e in events.Scalars("lm loss"))
    text = tensor_util.make_ndarray(events.Tensors("settings/text_summary")[0].tensor_proto)[0].decode()
    assert json.loads(text.removeprefix("```json").removesuffix("```"))["model"]["hidden_size"] == 32
print(f"{len(tags)} curves of {len(rows)} iterations are as TensorBoard reads them")
