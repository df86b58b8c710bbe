#!/usr/bin/env python3
"""Opens what we write with the Hugging Face libraries.

  check_hf.py export MEGATRON GOLDEN OUT   every golden model through us and back: decoders by the ranks of TP2 x PP2
                                           (x EP2), others by one. Needs the program alone.
  check_hf.py both MEGATRON GOLDEN         one after the other; 77 where transformers is not installed.
  check_hf.py check GOLDEN OUT             loads each result with the Auto classes of transformers, without a tensor
                                           missing or too many; compares its tensors with the source's to the bit and
                                           its logits, in fp32, with the golden ones.

GOLDEN is build/<preset>/golden/hf_models, or a folder with the archives golden_hf_models_*.tar.*.
"""

import glob
import importlib.util
import json
import os
import subprocess
import sys
import tarfile
import tempfile

# Cases that one rank converts; the rest are decoders.
WHOLE = {"bert", "t5_gated", "qwen2_vl", "qwen2_5_vl", "gemma3_mm"}
# A second form of a case, with the logits that belong to it.
VARIANTS = {"llama": {"model_bf16_sharded": "bf16.logits_fp32_compute"}}


def cases(golden):
    """(name of the result, folder of the case, folder of the source in it, name of the logits)"""
    for folder in sorted(glob.glob(os.path.join(golden, "*", "model"))):
        folder = os.path.dirname(folder)
        name = os.path.basename(folder)
        yield name, folder, "model", "out.logits"
        for source, logits in VARIANTS.get(name, {}).items():
            yield f"{name}.{source}", folder, source, logits


def unpacked(golden):
    archives = glob.glob(os.path.join(golden, "golden_hf_models_*.tar.*"))
    if not archives:
        return golden
    target = tempfile.mkdtemp()
    for archive in archives:
        with tarfile.open(archive) as tar:
            tar.extractall(target, filter="data")
    inner = glob.glob(os.path.join(target, "*", "llama")) + glob.glob(os.path.join(target, "llama"))
    return os.path.dirname(inner[0])


def read_json(path):
    with open(path) as file:
        return json.load(file)


def layout_flags(config):
    layers = config.get("num_hidden_layers") or config.get("n_layer") or len(config["layers_block_type"])
    flags = ["--ranks", "4", "--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "2"]
    if layers % 2:
        flags += ["--pipeline-model-parallel-layout", f"Et*{layers // 2 + 1}|t*{layers // 2}L"]
    if any(config.get(key) for key in ("num_local_experts", "num_experts", "n_routed_experts")):
        flags += ["--expert-model-parallel-size", "2", "--expert-tensor-parallel-size", "1"]
    return flags


def export(megatron, golden, out):
    golden = unpacked(golden)
    for name, folder, source, _ in cases(golden):
        model = os.path.join(folder, source)
        with tempfile.TemporaryDirectory() as work:
            checkpoint = os.path.join(work, "checkpoint")
            if name in WHOLE or source != "model":
                first = ["convert", "import", "--hf", model, "--out", checkpoint]
            else:
                first = ["finetune", "--hf", model, "--mock-data", "--seq-length", "32", "--micro-batch-size", "1",
                         "--global-batch-size", "1", "--train-iters", "0", "--lr", "0", "--precision", "fp32", "--save",
                         checkpoint] + layout_flags(read_json(os.path.join(model, "config.json")))
            for arguments in (first, ["convert", "export", "--ckpt", checkpoint, "--out", os.path.join(out, name)]):
                done = subprocess.run([megatron] + arguments, capture_output=True, text=True)
                if done.returncode:
                    sys.exit(f"{name}: {' '.join(arguments)}: {done.stderr}{done.stdout}")
        print(name)


def tensors_of(folder):
    """name -> (dtype, shape, bytes), over all files of a model"""
    tensors = {}
    for path in glob.glob(os.path.join(folder, "*.safetensors")):
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
            data = file.read()
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                tensors[name] = (entry["dtype"], entry["shape"], data[begin:end])
    return tensors


def check_case(name, folder, source, logits_name, out):
    """What is wrong with one result, and the largest difference of its logits."""
    import torch
    import transformers
    from safetensors.torch import load_file

    problems = []
    result, model = os.path.join(out, name), os.path.join(folder, source)
    ours, theirs = tensors_of(result), tensors_of(model)
    if ours.keys() != theirs.keys():
        problems.append(f"tensors {sorted(ours.keys() ^ theirs.keys())} are in one of both")
    different = [key for key in ours.keys() & theirs.keys() if ours[key] != theirs[key]]
    if different:
        problems.append(f"tensors {different} differ from the source")
    if read_json(os.path.join(result, "config.json")) != read_json(os.path.join(model, "config.json")):
        problems.append("config.json differs from the source's")

    meta, io = read_json(os.path.join(folder, "meta.json")), load_file(os.path.join(folder, "io.safetensors"))
    kind = {"mlm": "AutoModelForMaskedLM", "seq2seq": "AutoModelForSeq2SeqLM", "causal": "AutoModelForCausalLM"}
    loader = getattr(transformers, kind.get(meta["kind"], "AutoModelForImageTextToText"))

    def load(where):
        return loader.from_pretrained(where, dtype=torch.float32, local_files_only=True, output_loading_info=True,
                                      attn_implementation="eager", experts_implementation="eager")

    def logits_of(net):
        if source != "model":
            net = net.to(torch.bfloat16).float()  # as for the golden logits, whose rotary frequencies were rounded too
        net.eval()
        with torch.no_grad():
            return net(**inputs).logits.float()

    net, info = load(result)
    for what, names in info.items():
        if names:
            problems.append(f"{what}: {sorted(map(str, names))}")
    if type(net).__name__ != meta["architecture"]:
        problems.append(f"a {type(net).__name__}, not a {meta['architecture']}")
    inputs = {key[3:]: value for key, value in io.items() if key.startswith("in.") and key != "in.labels"}
    logits = logits_of(net)
    difference = (logits - io[logits_name]).abs().max().item()
    # Another release of the library may compute other logits than the one that made the golden ones.
    if not difference <= max(2e-5, 10 * meta["fp32_vs_fp64"]["logits_max_abs"]):
        if torch.equal(logits, logits_of(load(model)[0])):
            print(f"{name}: this transformers computes other logits than the golden ones from the source, too")
        else:
            problems.append("logits differ from the golden ones")
    return problems, difference


def check(golden, out):
    import torch
    import transformers

    torch.set_num_threads(4)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    golden = unpacked(golden)
    good = count = 0
    for name, folder, source, logits in cases(golden):
        count += 1
        try:
            problems, difference = check_case(name, folder, source, logits, out)
        except Exception as error:  # one case that fails hides no other
            problems, difference = [f"{type(error).__name__}: {error}"], float("nan")
        good += not problems
        print(f"{name}: {'; '.join(problems) or 'same tensors, loads'}, logits within {difference:.1e}", flush=True)
    print(f"{good} of {count}")
    return 0 if good == count else 1


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["export", megatron, golden, out]:
            export(megatron, golden, out)
        case ["check", golden, out]:
            sys.exit(check(golden, out))
        case ["both", megatron, golden]:
            if not importlib.util.find_spec("transformers") or not importlib.util.find_spec("torch"):
                print("transformers or torch is not installed for this Python: nothing was checked")
                sys.exit(77)
            with tempfile.TemporaryDirectory() as out:
                export(megatron, golden, out)
                sys.exit(check(golden, out))
        case _:
            sys.exit(__doc__)
