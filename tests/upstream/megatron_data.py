#!/usr/bin/env python3
"""Megatron-LM as a witness of our data: the same bytes, index caches that either side can use, the same samples.

    megatron_data.py --megatron build/release/bin/megatron --checkout MEGATRON-LM

Needs torch, tokenizers, transformers, sentencepiece, tiktoken, safetensors and pybind11 (pip), and a checkout of
github.com/NVIDIA/Megatron-LM, which is left as it is. Everything runs on the CPU.

1. preprocess: `tools/preprocess_data.py` and `megatron preprocess` write the same .bin and .idx, with each kind of
   tokenizer.
2. caches: Megatron-LM builds indices in one folder, we in another; both have the same names and bytes, and each side
   then reads the other's without building anything.
3. samples: every sample of its GPTDataset and BlendedDataset equals ours, over our files, with either cache.
4. SentencePiece: ids and text with special tokens in the legacy form, and with extra spaces kept."""
import argparse, base64, filecmp, json, logging, os, pathlib, random, runpy, subprocess, sys, sysconfig, tempfile

try:
    import torch
except ImportError:
    print("torch is not installed: NOTHING was tested")
    sys.exit(77)

WORDS = ("the of and to in a is that model layer token loss tensor rank batch gradient pipeline naïve Straße 世界 числа 42 100 3.5 "
         "hello world don't can't it's function return x += 1; -> 😀 ∑").split()
SPLIT, LENGTH, SAMPLES = "90,8,2", 24, (500, 60, 10)


def corpus(rnd, path, documents):
    with open(path, "w", encoding="utf-8") as out:
        for i in range(documents):
            words = [rnd.choice(WORDS) + rnd.choice([" ", " ", " ", "\n", ", "]) for _ in range(rnd.choice([1, 3, 20, 60]))]
            out.write(json.dumps({"id": i, "text": "".join(words)}, ensure_ascii=i % 2 == 0) + "\n")
        out.write(json.dumps({"id": -1, "text": ""}) + "\n")  # an empty document is none
        for _ in range(20):  # sentences
            out.write(json.dumps({"text": [" ".join(rnd.choice(WORDS) for _ in range(rnd.randint(0, 9))) for _ in range(rnd.randint(0, 4))]}) + "\n")


def numbers(rnd, path, documents):
    with open(path, "w", encoding="utf-8") as out:
        for _ in range(documents):
            out.write(json.dumps({"text": " ".join(str(rnd.randrange(999)) for _ in range(rnd.randint(1, 40)))}) + "\n")


def make_tokenizers(folder, text):
    """Name to type and flags; the vocabularies are learned from the corpus, so that nothing is downloaded."""
    import sentencepiece
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    lines = [" ".join(json.loads(line)["text"]) if isinstance(json.loads(line)["text"], list) else json.loads(line)["text"] for line in open(text, encoding="utf-8")]
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer, tok.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tok.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=500, special_tokens=["<|endoftext|>"], show_progress=False,
                                                       initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    PreTrainedTokenizerFast(tokenizer_object=tok, bos_token="<|endoftext|>", eos_token="<|endoftext|>").save_pretrained(folder / "hf")
    tok.model.save(str(folder / "hf"))  # vocab.json, merges.txt
    # A template that puts a token in front, as Llama 3's, and lengths that transformers passes over.
    tok.post_processor = processors.TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", tok.token_to_id("<|endoftext|>"))])
    tok.enable_truncation(5)
    tok.enable_padding(length=8)
    PreTrainedTokenizerFast(tokenizer_object=tok, bos_token="<|endoftext|>", eos_token="<|endoftext|>").save_pretrained(folder / "bos")
    plain = folder / "plain.txt"
    plain.write_text("\n".join(" ".join(line.split()) for line in lines), encoding="utf-8")
    for kind in ("bpe", "unigram"):
        sentencepiece.SentencePieceTrainer.train(input=str(plain), model_prefix=str(folder / kind), vocab_size=260, model_type=kind,
                                                 byte_fallback=False, hard_vocab_limit=False, minloglevel=2)
    # Upstream's form of tiktoken vocabularies: JSON rows with rank and base64 bytes.
    rows = [{"rank": i, "token_bytes": base64.b64encode(bytes([i])).decode(), "token_str": ""} for i in range(256)]
    seen = {bytes([i]) for i in range(256)}
    for word in dict.fromkeys(w for line in lines for w in line.split()):
        raw = (" " + word).encode()
        for end in range(2, len(raw) + 1):  # every prefix, so that each token is a merge of two
            if raw[:end] not in seen:
                seen.add(raw[:end])
                rows.append({"rank": len(rows), "token_bytes": base64.b64encode(raw[:end]).decode(), "token_str": ""})
    (folder / "tiktoken.json").write_text(json.dumps(rows))
    special = ["<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>"]
    return {
        "hf": ("HuggingFaceTokenizer", ["--tokenizer-model", str(folder / "hf")]),
        "bos": ("HuggingFaceTokenizer", ["--tokenizer-model", str(folder / "bos")]),
        "no_bos": ("HuggingFaceTokenizer", ["--tokenizer-model", str(folder / "bos"), "--tokenizer-hf-no-include-special-tokens"]),
        "bpe": ("GPTSentencePieceTokenizer", ["--tokenizer-model", str(folder / "bpe.model")]),
        "unigram": ("SentencePieceTokenizer", ["--tokenizer-model", str(folder / "unigram.model")]),
        "tiktoken": ("TikTokenizer", ["--tokenizer-model", str(folder / "tiktoken.json"), "--vocab-size", str(len(rows) + 20), "--tiktoken-pattern", "v2",
                         "--tiktoken-num-special-tokens", "20", "--tokenizer-special-tokens", *special]),
        "null": ("NullTokenizer", ["--vocab-size", "1000"]),
    }


def load_helpers(checkout, folder):
    """Megatron-LM's C++ helpers, compiled outside the checkout; and what it takes of Python 3.12."""
    import pybind11

    (folder / "sitecustomize.py").write_text("import typing\nif not hasattr(typing, 'override'):\n    typing.override = lambda method: method\n")
    runpy.run_path(str(folder / "sitecustomize.py"))

    target = folder / ("helpers_cpp" + sysconfig.get_config_var("EXT_SUFFIX"))
    subprocess.run(["c++", "-O2", "-shared", "-std=c++17", "-fPIC", f"-I{pybind11.get_include()}", f"-I{sysconfig.get_paths()['include']}",
                    f"{checkout}/megatron/core/datasets/helpers.cpp", "-o", str(target)], check=True)
    sys.path.insert(0, str(checkout))
    import megatron.core.datasets

    megatron.core.datasets.__path__.append(str(folder))


class Witness:
    def __init__(self, megatron, checkout, folder):
        self.megatron, self.checkout, self.folder = megatron, checkout, folder
        self.wrong = 0

    def tell(self, good, text):
        self.wrong += not good
        print(("" if good else "DIFFERENT ") + text, flush=True)

    def output(self, *arguments):
        """What our program prints, by lines."""
        return subprocess.run([self.megatron, *arguments], capture_output=True, check=True).stdout.splitlines()

    def ours(self, *arguments):
        done = subprocess.run([self.megatron, *arguments], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"megatron {' '.join(arguments)}\n{done.stderr}")

    def preprocess(self, name, kind, flags, text):
        prefix = {side: str(self.folder / f"{name}_{side}") for side in ("ours", "theirs")}
        further = ["--append-eod"] if kind != "NullTokenizer" else []
        common = ["--input", str(text), "--tokenizer-type", kind, *flags, "--workers", "2", *further]
        environment = dict(os.environ, PYTHONPATH=f"{self.folder}:{self.checkout}", PYTHONWARNINGS="ignore")
        done = subprocess.run([sys.executable, str(self.checkout / "tools/preprocess_data.py"), *common, "--output-prefix", prefix["theirs"]],
                              capture_output=True, text=True, env=environment, cwd=self.folder, check=False)
        if done.returncode != 0:
            sys.exit(f"preprocess_data.py with {kind} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        self.ours("preprocess", *common, "--output-prefix", prefix["ours"])
        same = all(filecmp.cmp(f"{prefix['ours']}_text_document{end}", f"{prefix['theirs']}_text_document{end}", shallow=False)
                   for end in (".bin", ".idx"))
        size = os.path.getsize(f"{prefix['ours']}_text_document.bin")
        self.tell(same, f"preprocess with {kind} ({name}): .bin of {size} bytes and .idx")
        return f"{prefix['ours']}_text_document"

    def their_tokenizer(self, kind, flags):
        """Made by its own arguments and builder, so that its description in cache names is its own."""
        from megatron.core.tokenizers.utils.build_tokenizer import build_tokenizer
        from megatron.training.arguments import _add_tokenizer_args

        parser = _add_tokenizer_args(argparse.ArgumentParser())
        arguments = parser.parse_args(["--tokenizer-type", kind, *flags])
        arguments.rank, arguments.make_vocab_size_divisible_by, arguments.tensor_model_parallel_size = 1, 128, 1
        return build_tokenizer(arguments)

    def sentencepiece(self, folder):
        rnd = random.Random(5)
        pieces = [" ", "  ", "   ", "<a>", "<s>", "</s>", "[b]", "the", "tensor", "x", "世界", "\u262f", "\n", "\t", "\u00a0", "😀", "▁"]
        texts = ["".join(rnd.choice(pieces) for _ in range(rnd.randint(0, 9))) for _ in range(4000)]
        lines = self.folder / "texts.jsonl"
        lines.write_text("".join(json.dumps(text) + "\n" for text in texts))
        special = ["--tokenizer-sentencepiece-legacy", "--tokenizer-special-tokens", "<a>", "<s>", "[b]"]
        kept = ["--no-tokenizer-sentencepiece-ignore-extra-whitespaces"]
        for model in ("bpe", "unigram"):
            for further in (special, kept, kept + special):
                flags = ["--tokenizer-model", str(folder / f"{model}.model"), *further]
                theirs = self.their_tokenizer("SentencePieceTokenizer", flags)
                common = ["--tokenizer-type", "SentencePieceTokenizer", *flags]
                ids = [json.loads(line) for line in self.output("tokenizer", "encode", "--input", str(lines), *common)]
                wrong = [text for text, own in zip(texts, ids, strict=True) if own != theirs.tokenize(text)]
                lists = self.folder / "ids.jsonl"
                lists.write_text("".join(json.dumps(own) + "\n" for own in ids))
                decoded = [json.loads(line) for line in self.output("tokenizer", "decode", "--input", str(lists), *common)]
                wrong += [own for own, text in zip(ids, decoded, strict=True) if text != theirs.detokenize(own)]
                self.tell(not wrong, f"{model} with {' '.join(further)}: {len(texts)} texts {ascii(wrong[:3]) if wrong else ''}")

    def their_splits(self, tokenizer, blend, cache, options):
        from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
        from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
        from megatron.core.datasets.utils import get_blend_from_list

        config = GPTDatasetConfig(random_seed=1234, sequence_length=LENGTH, blend=get_blend_from_list(blend), split=SPLIT, path_to_cache=str(cache),
                                  tokenizer=tokenizer, create_attention_mask=False, reset_attention_mask=False, mid_level_dataset_surplus=0.005,
                                  reset_position_ids="--reset-position-ids" in options, eod_mask_loss="--eod-mask-loss" in options)
        return BlendedMegatronDatasetBuilder(GPTDataset, list(SAMPLES), lambda: True, config).build()

    def compare(self, name, kind, flags, tokenizer, blend, options):
        from safetensors.torch import load_file

        caches = {side: self.folder / f"cache_{name}_{side}" for side in ("ours", "theirs")}
        out = self.folder / f"{name}.safetensors"

        def our_samples(cache):
            pad = getattr(tokenizer, "pad", None)
            self.ours("data", "samples", "--data-path", *blend, "--split", SPLIT, "--seq-length", str(LENGTH), "--samples", ",".join(map(str, SAMPLES)),
                      "--count", "100000", "--data-cache-path", str(cache), "--out", str(out), "--tokenizer-type", kind, *flags,
                      "--no-create-attention-mask-in-dataloader", "--eod-id", str(tokenizer.eod), *options,
                      *(["--pad-id", str(pad)] if isinstance(pad, int) and pad >= 0 else []))
            return load_file(out)

        def files(cache):
            return {f.name: f.stat().st_mtime_ns for f in cache.iterdir() if not f.name.endswith("facts.json")}

        def check(splits, samples, what):
            count = 0
            for split, dataset in zip(("train", "valid", "test"), splits):
                for i in range(len(dataset)):
                    for key, value in dataset[i].items():
                        mine = samples[f"{split}.{'dataset_index' if key == 'dataset_id' else key}"][i]
                        if not torch.equal(torch.as_tensor(value).to(mine.dtype), mine):
                            return self.tell(False, f"{what}: {split} sample {i}, {key}\n  theirs {value}\n  ours   {mine}")
                    count += 1
                if len(samples[f"{split}.tokens"]) != len(dataset):
                    return self.tell(False, f"{what}: {split} has {len(dataset)} samples, ours {len(samples[f'{split}.tokens'])}")
            self.tell(True, f"{what}: {count} samples")

        theirs = self.their_splits(tokenizer, blend, caches["theirs"], options)
        check(theirs, our_samples(caches["ours"]), f"{name}: each with its own cache")
        same = files(caches["ours"]).keys() == files(caches["theirs"]).keys() and \
            all(filecmp.cmp(caches["ours"] / f, caches["theirs"] / f, shallow=False) for f in files(caches["theirs"]))
        self.tell(same, f"{name}: {len(files(caches['theirs']))} cache files by the same names with the same bytes")
        before = {side: files(caches[side]) for side in caches}
        swapped = self.their_splits(tokenizer, blend, caches["ours"], options)
        check(swapped, our_samples(caches["theirs"]), f"{name}: each with the other's cache")
        self.tell(before == {side: files(caches[side]) for side in caches}, f"{name}: nothing was built again")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--megatron", required=True)
    p.add_argument("--checkout", required=True, type=pathlib.Path)
    o = p.parse_args()
    if not (o.checkout / "tools/preprocess_data.py").exists():
        print(f"{o.checkout} is no checkout of Megatron-LM: NOTHING was tested")
        sys.exit(77)
    rnd = random.Random(77)
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        witness = Witness(o.megatron, o.checkout.resolve(), folder)
        load_helpers(witness.checkout, folder)
        corpus(rnd, folder / "text.jsonl", 300)
        numbers(rnd, folder / "numbers.jsonl", 200)
        tokenizers = make_tokenizers(folder, folder / "text.jsonl")
        witness.sentencepiece(folder)
        prefixes = {name: witness.preprocess(name, kind, flags, folder / ("numbers.jsonl" if kind == "NullTokenizer" else "text.jsonl"))
                    for name, (kind, flags) in tokenizers.items()}
        for name, (kind, flags) in tokenizers.items():
            tokenizer = witness.their_tokenizer(kind, flags)
            witness.compare(name, kind, flags, tokenizer, [prefixes[name]], ["--reset-position-ids", "--eod-mask-loss"])
            if name == "hf":
                witness.compare("blend", kind, flags, tokenizer, ["0.3", prefixes[name], "0.7", prefixes["bpe"]], [])
        version = subprocess.run(["git", "-C", str(o.checkout), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
        print(f"Megatron-LM {version}, torch {torch.__version__}: {witness.wrong} differences")
        sys.exit(witness.wrong > 0)


main()
