#!/usr/bin/env python3
"""Megatron-LM's checkpoint formats against PyTorch itself.

  check_torch.py MEGATRON GOLDEN   GOLDEN is build/<preset>/golden; 77 where PyTorch is not installed.

Exports: torch.distributed.checkpoint loads what `convert export --megatron` wrote, and every tensor equals ours to the
bit. Imports: `convert import --megatron` takes what torch.distributed.checkpoint and torch.save wrote.
"""

import argparse
import glob
import io
import json
import os
import re
import struct
import subprocess
import sys
import tempfile

try:
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
except ImportError:
    print("PyTorch is not installed: NOTHING was tested")
    sys.exit(77)

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "I64": torch.int64}
# Norms that Transformer Engine keeps with the linear layer that follows.
FUSED = [(r"self_attention\.linear_qkv\.layer_norm_", "input_layernorm."),
         (r"self_attention\.linear_q_up_proj\.layer_norm_", "self_attention.q_layernorm."),
         (r"self_attention\.linear_kv_up_proj\.layer_norm_", "self_attention.kv_layernorm."),
         (r"mlp\.linear_fc1\.layer_norm_", "pre_mlp_layernorm."),
         (r"mixer\.in_proj\.layer_norm_", "norm."),
         (r"^decoder\.final_norm\.", "decoder.final_layernorm.")]
PARTS = {"mixer.in_proj.weight": ["z", "x", "B", "C", "dt"], "mixer.conv1d.weight": ["x", "B", "C"],
         "mixer.conv1d.bias": ["x", "B", "C"]}


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


def our_tensors(root):
    """Every tensor of a checkpoint of ours; pieces are whole after a conversion."""
    folder = sorted(glob.glob(os.path.join(root, "iter_*")))[-1]
    tensors = {}
    for path in glob.glob(os.path.join(folder, "*.safetensors")):
        data = open(path, "rb").read()
        size = struct.unpack("<Q", data[:8])[0]
        for name, entry in json.loads(data[8:8 + size]).items():
            if name == "__metadata__":
                continue
            begin, end = (8 + size + place for place in entry["data_offsets"])
            flat = torch.frombuffer(bytearray(data[begin:end]), dtype=DTYPES[entry["dtype"]])
            tensors[name] = flat.reshape(entry["shape"])
    return tensors


def load_dcp(folder):
    """(tensors, objects) of a torch.distributed.checkpoint folder."""
    reader = dcp.FileSystemReader(folder)
    metadata = reader.read_metadata()
    state = {key: torch.zeros(value.size, dtype=value.properties.dtype)
             for key, value in metadata.state_dict_metadata.items() if isinstance(value, TensorStorageMetadata)}
    dcp.load(state, storage_reader=dcp.FileSystemReader(folder), no_dist=True)
    objects = {}
    for index, place in metadata.storage_data.items():
        if index.fqn in state:
            continue
        with open(os.path.join(folder, place.relative_path), "rb") as file:
            file.seek(place.offset)
            with torch.serialization.safe_globals([argparse.Namespace]):
                objects[index.fqn] = torch.load(io.BytesIO(file.read(place.length)), weights_only=True)
    return state, objects


def as_ours(theirs):
    """Their tensors under our names: layers apart, parts joined, norms by their own names."""
    ours = {}
    for key, value in theirs.items():
        state = re.match(r"optimizer\.state\.(\w+)\.", key)
        name = key[state.end():] if state else key
        stacked = re.match(r"decoder\.layers\.(?!\d)", name)
        for pattern, own in FUSED:
            name = re.sub(pattern, own, name)
        prefix = "" if not state else f"optimizer.{'master' if state[1] == 'param' else state[1]}."
        for layer in range(value.shape[0]) if stacked else [None]:
            full = name if layer is None else name.replace("decoder.layers.", f"decoder.layers.{layer}.", 1)
            ours[prefix + full] = value if layer is None else value[layer]
    for end, parts in PARTS.items():
        for name in [name for name in ours if name.endswith(f"{end}.{parts[0]}")]:
            base = name[:-len(parts[0]) - 1]
            ours[base] = torch.cat([ours.pop(f"{base}.{part}") for part in parts])
    return ours


def expect_same(found, wanted, what):
    missing, extra = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    if missing or extra:
        raise SystemExit(f"{what}: missing {missing[:5]}, too many {extra[:5]}")
    for name, value in wanted.items():
        if found[name].dtype != value.dtype or not torch.equal(found[name], value):
            raise SystemExit(f"{what}: {name} differs")
    print(f"{what}: {len(wanted)} tensors are the same")


def check_exports(megatron, golden, work):
    for archive, case in [("hf_models_a", "llama"), ("hf_models_b", "deepseek_v3"), ("hf_models_b", "nemotron_h"),
                          ("hf_models_b", "mixtral")]:
        ours, theirs = os.path.join(work, case), os.path.join(work, case + ".megatron")
        run(megatron, "-q", "convert", "import", "--hf", os.path.join(golden, archive, case, "model"), "--out", ours)
        run(megatron, "-q", "convert", "export", "--ckpt", ours, "--megatron", "--out", theirs)
        tensors, objects = load_dcp(os.path.join(theirs, "release"))
        expect_same(as_ours(tensors), our_tensors(ours), f"export of {case}")
        common = objects["common_state/shard_0_1"][0]
        assert common["args"].hidden_size == 48 and common["args"].padded_vocab_size == 192, vars(common["args"])
        assert common["iteration"] == 0 and common["checkpoint_version"] == 3.0


RUN = ["--num-layers", 2, "--hidden-size", 32, "--num-attention-heads", 4, "--seq-length", 16,
       "--max-position-embeddings", 16, "--micro-batch-size", 2, "--global-batch-size", 4, "--train-iters", 3,
       "--lr", "1e-3", "--vocab-size", 64, "--mock-data", "--bf16", "--swiglu", "--normalization", "RMSNorm",
       "--disable-bias-linear"]


def check_run(megatron, work):
    """A run's checkpoint, with its optimizer, there and back."""
    ours, theirs, again = (os.path.join(work, name) for name in ("run", "run.megatron", "run.again"))
    run(megatron, "-q", "pretrain", *RUN, "--save", ours)
    run(megatron, "-q", "convert", "export", "--ckpt", ours, "--megatron", "--out", theirs)
    tensors, objects = load_dcp(os.path.join(theirs, "iter_0000003"))
    expect_same(as_ours(tensors), our_tensors(ours), "export of a run")
    common = objects["common_state/shard_0_1"][0]
    assert common["iteration"] == 3 and common["args"].consumed_train_samples == 12
    assert [group["step"] for group in common["optimizer"]["optimizer"]["param_groups"]] == [3, 3]
    run(megatron, "-q", "convert", "import", "--megatron", theirs, "--out", again)
    expect_same(our_tensors(again), our_tensors(ours), "a run there and back")


ARGS = dict(num_layers=4, hidden_size=16, num_attention_heads=4, ffn_hidden_size=24, kv_channels=4,
            group_query_attention=False, num_query_groups=1, seq_length=8, max_position_embeddings=8,
            position_embedding_type="rope", normalization="RMSNorm", norm_epsilon=1e-5, swiglu=True,
            add_bias_linear=False, untie_embeddings_and_output_weights=True, padded_vocab_size=32, num_experts=None,
            tensor_model_parallel_size=1, pipeline_model_parallel_size=1, virtual_pipeline_model_parallel_size=None,
            consumed_train_samples=40, params_dtype=torch.bfloat16, lr=1e-3)


def model(dtype):
    make = torch.Generator().manual_seed(1)
    shapes = {"embedding.word_embeddings.weight": (32, 16), "output_layer.weight": (32, 16),
              "decoder.final_layernorm.weight": (16,)}
    for layer in range(4):
        shapes |= {f"decoder.layers.{layer}.{name}": shape for name, shape in {
            "input_layernorm.weight": (16,), "pre_mlp_layernorm.weight": (16,),
            "self_attention.linear_qkv.weight": (48, 16), "self_attention.linear_proj.weight": (16, 16),
            "mlp.linear_fc1.weight": (48, 16), "mlp.linear_fc2.weight": (16, 24)}.items()}
    return {name: torch.randn(shape, generator=make).to(dtype) for name, shape in shapes.items()}


def check_torch_dist(megatron, work):
    """What DCP itself wrote, with the state in common.pt as older Megatron-LM has it."""
    folder, out = os.path.join(work, "dcp"), os.path.join(work, "dcp.ours")
    tensors = model(torch.bfloat16)
    dcp.save(dict(tensors), storage_writer=dcp.FileSystemWriter(folder, single_file_per_rank=False), no_dist=True)
    torch.save({"args": argparse.Namespace(**ARGS), "iteration": 10, "checkpoint_version": 3.0},
               os.path.join(folder, "common.pt"))
    with open(os.path.join(folder, "metadata.json"), "w") as file:
        json.dump({"sharded_backend": "torch_dist", "sharded_backend_version": 1}, file)
    run(megatron, "-q", "convert", "import", "--megatron", folder, "--out", out)
    expect_same(our_tensors(out), tensors, "import from torch_dist")


def rank_tensors(tensors, tensor_rank, stage):
    """A rank's of two tensor-parallel ranks and two stages."""
    local = {}
    for name, value in tensors.items():
        layer = re.match(r"decoder\.layers\.(\d+)\.(.*)", name)
        if layer:
            if int(layer[1]) // 2 != stage:
                continue
            name = f"decoder.layers.{int(layer[1]) % 2}.{layer[2]}"
        elif name.startswith("embedding") != (stage == 0):
            continue
        if re.search(r"linear_fc1", name):
            value = torch.cat([half.chunk(2)[tensor_rank] for half in value.chunk(2)])
        elif re.search(r"word_embeddings|output_layer|linear_qkv", name):
            value = value.chunk(2)[tensor_rank]
        elif re.search(r"linear_proj|linear_fc2", name):
            value = value.chunk(2, dim=1)[tensor_rank]
        local[name] = value.clone()
    return local


def check_legacy(megatron, work):
    """torch.save of each rank, with what else Megatron-LM puts there."""
    root, out = os.path.join(work, "legacy"), os.path.join(work, "legacy.ours")
    tensors = model(torch.float32)
    args = argparse.Namespace(**ARGS | dict(tensor_model_parallel_size=2, pipeline_model_parallel_size=2))
    for tensor_rank in range(2):
        for stage in range(2):
            folder = os.path.join(root, "iter_0000010", f"mp_rank_{tensor_rank:02}_{stage:03}")
            os.makedirs(folder)
            torch.save({"args": args, "checkpoint_version": 3.0, "iteration": 10,
                        "model": rank_tensors(tensors, tensor_rank, stage),
                        "rng_state": [{"torch_rng_state": torch.get_rng_state()}]},
                       os.path.join(folder, "model_optim_rng.pt"))
    with open(os.path.join(root, "latest_checkpointed_iteration.txt"), "w") as file:
        file.write("10")
    run(megatron, "-q", "convert", "import", "--megatron", root, "--out", out)
    expect_same(our_tensors(out), tensors, "import from torch")


def main():
    megatron, golden = sys.argv[1:]
    with tempfile.TemporaryDirectory() as work:
        check_exports(megatron, golden, work)
        check_run(megatron, work)
        check_torch_dist(megatron, work)
        check_legacy(megatron, work)


if __name__ == "__main__":
    main()
