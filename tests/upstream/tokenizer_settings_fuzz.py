#!/usr/bin/env python3
"""Random settings of tokenizer.json through `megatron tokenizer` and the package tokenizers; they must agree.

Each case draws a model, a normalizer, a pre-tokenizer, a post-processor, a decoder, added tokens with their flags,
truncation and padding, most of them sequences, and meets --strings random strings: ids, ids with special tokens, pieces,
offsets, decoded text with and without special tokens. Ends with 1 and the first differences where there are any. Settings
that the package itself refuses are drawn again, strings that it panics at are left out; those that `megatron` refuses by name
are counted.

usage: tokenizer_settings_fuzz.py --megatron BINARY [--count 300] [--strings 200] [--seed 1]
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import tokenizers_fuzz as fuzz

PATTERNS = [fuzz.GPT2, fuzz.LLAMA3, fuzz.QWEN2, fuzz.O200K, fuzz.CL100K, *fuzz.OTHERS]
BEHAVIORS = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]
SPECIALS = ["<unk>", "<s>", "</s>", "<pad>", "[CLS]", "[SEP]"]


def safely(call):
    """What it gives, or None where the package refuses or panics."""
    try:
        return call()
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 panics are no Exceptions
        return None


class Settings:
    """Draws one tokenizer."""

    def __init__(self, rnd):
        self.r = rnd

    def flip(self, share=0.5):
        return self.r.random() < share

    def some(self, draw, most):
        """One drawn thing, or a sequence of them."""
        return [draw() for _ in range(self.r.randint(1, most))]

    def pattern(self):
        return Regex(self.r.choice(PATTERNS)) if self.flip(0.6) else self.r.choice([" ", "a", "e", "th", "▁", "\n", "##", "é", "e\u0301"])

    def normalizer(self):
        n = normalizers
        return self.r.choice([
            n.NFC, n.NFD, n.NFKC, n.NFKD, n.Lowercase, n.StripAccents, n.Nmt,
            lambda: n.Strip(left=self.flip(), right=self.flip()),
            lambda: n.Replace(self.pattern(), self.r.choice(["", " ", "x", "▁", "ab", "é"])),
            lambda: n.Prepend(self.r.choice(["x", "▁", " ", "ab"])),
            lambda: n.ByteLevel(),
            lambda: n.BertNormalizer(clean_text=self.flip(), handle_chinese_chars=self.flip(), strip_accents=self.r.choice([None, True, False]), lowercase=self.flip()),
        ])()

    def pre_tokenizer(self):
        p = pre_tokenizers
        return self.r.choice([
            p.BertPreTokenizer, p.Whitespace, p.WhitespaceSplit, p.UnicodeScripts, lambda: p.FixedLength(self.r.randint(1, 6)),
            lambda: p.Punctuation(behavior=self.r.choice(BEHAVIORS)),
            lambda: p.Digits(individual_digits=self.flip()),
            lambda: p.CharDelimiterSplit(self.r.choice([" ", "a", "▁", "é"])),
            lambda: p.Metaspace(replacement=self.r.choice(["▁", "▁", "_"]), prepend_scheme=self.r.choice(["always", "first", "never"]), split=self.flip()),
            lambda: p.Split(self.pattern(), behavior=self.r.choice(BEHAVIORS), invert=self.flip(0.3)),
            lambda: p.ByteLevel(add_prefix_space=self.flip(), trim_offsets=self.flip(), use_regex=self.flip()),
        ])()

    def decoder(self):
        d = decoders
        return self.r.choice([
            d.ByteLevel, d.ByteFallback, d.Fuse,
            lambda: d.WordPiece(prefix=self.r.choice(["##", "@@"]), cleanup=self.flip()),
            lambda: d.BPEDecoder(suffix=self.r.choice(["</w>", "a"])),
            lambda: d.Metaspace(replacement=self.r.choice(["▁", "_"]), prepend_scheme=self.r.choice(["always", "first", "never"])),
            lambda: d.Replace(self.r.choice(["▁", "a", Regex(r"\s+"), Regex("[ae]")]), self.r.choice([" ", "", "xy"])),
            lambda: d.Strip(self.r.choice([" ", "a", "▁"]), self.r.randint(0, 2), self.r.randint(0, 2)),
            lambda: d.CTC(pad_token=self.r.choice(["<pad>", "a"]), word_delimiter_token="|", cleanup=self.flip()),
        ])()

    def post_processor(self):
        p = processors
        pair = lambda: tuple(self.r.choice([("<s>", 1), ("</s>", 2), ("[CLS]", 4), ("[SEP]", 5)]) for _ in range(2))
        template = lambda: p.TemplateProcessing(
            single=" ".join(self.r.sample(["<s>", "</s>", "[CLS]:1", "[SEP]"], self.r.randint(0, 2)) + ["$A" + self.r.choice(["", ":0", ":1"])] + self.r.sample(["</s>:1", "[SEP]"], self.r.randint(0, 2))),
            special_tokens=[("<s>", 1), ("</s>", 2), ("[CLS]", 4), ("[SEP]", 5)])
        return self.r.choice([
            template, template,
            lambda: p.ByteLevel(trim_offsets=self.flip()),
            lambda: p.BertProcessing(*pair()),
            lambda: p.RobertaProcessing(*pair(), trim_offsets=self.flip(), add_prefix_space=self.flip()),
        ])()

    def model(self, text):
        """A trained model, whose first ids are those of SPECIALS."""
        kind = self.r.choice(["bpe", "bpe", "bpe", "wordpiece", "unigram", "wordlevel"])
        common = dict(special_tokens=SPECIALS, show_progress=False)
        bytes_too = self.flip(0.5)
        if kind == "bpe":
            prefix, suffix = self.r.choice([(None, None)] * 4 + [("##", None), (None, "</w>")])
            tok = Tokenizer(models.BPE(unk_token=self.r.choice([None, "<unk>"]), fuse_unk=self.flip(), byte_fallback=False, ignore_merges=self.flip(0.3),
                                       continuing_subword_prefix=prefix, end_of_word_suffix=suffix))
            trainer = trainers.BpeTrainer(vocab_size=self.r.choice([300, 700, 1200]), initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if bytes_too else [],
                                          continuing_subword_prefix=prefix, end_of_word_suffix=suffix, **common)
            tok.pre_tokenizer = pre_tokenizers.ByteLevel() if bytes_too else self.r.choice([pre_tokenizers.Whitespace(), pre_tokenizers.Metaspace()])
        elif kind == "wordpiece":
            prefix = self.r.choice(["##", "##", "@@", ""])
            tok = Tokenizer(models.WordPiece(unk_token="<unk>", max_input_chars_per_word=self.r.choice([5, 30, 100]), continuing_subword_prefix=prefix))
            trainer = trainers.WordPieceTrainer(vocab_size=600, continuing_subword_prefix=prefix, **common)
            tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        elif kind == "unigram":
            tok = Tokenizer(models.Unigram())
            trainer = trainers.UnigramTrainer(vocab_size=500, unk_token="<unk>", **common)
            tok.pre_tokenizer = pre_tokenizers.Metaspace()
        else:
            tok = Tokenizer(models.WordLevel(unk_token="<unk>"))
            trainer = trainers.WordLevelTrainer(vocab_size=200, **common)
            tok.pre_tokenizer = pre_tokenizers.Whitespace()
        tok.train_from_iterator(text, trainer)
        saved = json.loads(tok.to_str())
        if kind in ("bpe", "unigram") and self.flip(0.3):  # bytes for what has no piece
            vocabulary = saved["model"]["vocab"]
            for b in range(256):
                if kind == "bpe":
                    vocabulary.setdefault(f"<0x{b:02X}>", len(vocabulary))
                else:
                    vocabulary.append([f"<0x{b:02X}>", -20.0])
            saved["model"]["byte_fallback"] = True
        saved["added_tokens"] = [a for a in saved["added_tokens"] if self.flip(0.9)]
        return Tokenizer.from_str(json.dumps(saved))

    def tokenizer(self, text):
        tok = self.model(text)
        if self.flip(0.7):
            parts = self.some(self.normalizer, 3)
            tok.normalizer = parts[0] if len(parts) == 1 else normalizers.Sequence(parts)
        if self.flip(0.85):
            parts = self.some(self.pre_tokenizer, 3)
            tok.pre_tokenizer = parts[0] if len(parts) == 1 else pre_tokenizers.Sequence(parts)
        else:
            tok.pre_tokenizer = None
        if self.flip(0.8):
            parts = self.some(self.decoder, 3)
            tok.decoder = parts[0] if len(parts) == 1 else decoders.Sequence(parts)
        if self.flip(0.7):
            parts = self.some(self.post_processor, 2)
            tok.post_processor = parts[0] if len(parts) == 1 else processors.Sequence(parts)
        for _ in range(self.r.randint(0, 5)):
            token = AddedToken(self.r.choice(["hello", "the", "[MASK]", "##", "Ab", "A1", "</", "é", " x", "<|x|>", "你", "İ", "e\u0301", "ab c", "  ", "\n", "ﬁ"]), single_word=self.flip(0.3),
                               lstrip=self.flip(0.3), rstrip=self.flip(0.3), normalized=self.flip(), special=self.flip())
            if token.normalized and tok.normalizer and not tok.normalizer.normalize_str(token.content):
                continue  # it would be found everywhere
            (tok.add_special_tokens if self.flip(0.4) else tok.add_tokens)([token])
        found = [tok.normalizer.normalize_str(t.content) if tok.normalizer else t.content for t in tok.get_added_tokens_decoder().values() if t.normalized]
        if len(found) != len(set(found)):
            raise ValueError("two added tokens have one text: the package takes one of them by chance, another each time it loads the file")
        if self.flip(0.25):
            tok.enable_truncation(self.r.choice([4, 6, 9, 30]), stride=self.r.choice([0, 0, 1, 2]), strategy=self.r.choice(["longest_first", "only_first"]), direction=self.r.choice(["left", "right"]))
        if self.flip(0.25):
            tok.enable_padding(direction=self.r.choice(["left", "right"]), pad_id=3, pad_token="<pad>", length=self.r.choice([None, 8, 20]), pad_to_multiple_of=self.r.choice([None, 4, 7]))
        return tok


class Cases:
    def __init__(self, megatron, folder):
        self.megatron, self.folder = megatron, pathlib.Path(folder)
        self.wrong, self.refused, self.strings, self.panics = 0, {}, 0, 0

    def run(self, action, path, lines, *flags):
        """Answers, or the refusal."""
        (self.folder / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        done = subprocess.run([self.megatron, "tokenizer", action, "--input", str(self.folder / "lines.jsonl"), "--tokenizer-type", "HuggingFaceTokenizer",
                               "--tokenizer-model", path, *flags], capture_output=True, check=False)
        if done.returncode != 0:
            return done.stderr.decode()
        return [json.loads(line) for line in done.stdout.split(b"\n")[:-1]]

    def check(self, number, tok, rnd, strings):
        path = str(self.folder / "tokenizer.json")
        tok.save(path)
        tok = Tokenizer.from_file(path)
        size = tok.get_vocab_size()
        pieces = [tok.id_to_token(i) or "" for i in range(size)]
        texts = [fuzz.random_text(rnd, pieces) for _ in range(strings)]
        plain = self.run("encode", path, texts)
        if isinstance(plain, str):
            reason = plain.strip().split("\n")[0].replace(path, "FILE")
            self.refused[reason] = self.refused.get(reason, 0) + 1
            return
        self.strings += strings
        differences = 0

        def compare(what, item, ours, theirs):
            nonlocal differences
            if ours == theirs:
                return
            differences += 1
            if differences <= 2:
                settings = json.loads(tok.to_str())
                settings["model"] = {k: v for k, v in settings["model"].items() if k not in ("vocab", "merges")}
                settings["added_tokens"] = [{k: v for k, v in a.items() if v} for a in settings["added_tokens"] if a["content"] not in SPECIALS]
                settings = {k: v for k, v in settings.items() if v and k != "version"}
                print(f"  case {number}, {what} of {item!r}\n    ours   {ours!r}\n    theirs {theirs!r}\n    {json.dumps(settings, ensure_ascii=False)}", flush=True)

        full = self.run("encode", path, texts, "--json", "--add-special-tokens")
        if isinstance(full, str):
            compare("encoding with offsets", path, full, "no error")
            full = []
        for text, ids, row in zip(texts, plain, full):
            theirs = safely(lambda: (tok.encode(text, add_special_tokens=False), tok.encode(text)))
            if theirs is None:
                self.panics += 1
                continue
            compare("ids", text, ids, theirs[0].ids)
            compare("ids with special tokens", text, row["ids"], theirs[1].ids)
            if row["ids"] == theirs[1].ids:
                compare("pieces", text, row["pieces"], theirs[1].tokens)
                compare("offsets", text, row["offsets"], [list(o) for o in theirs[1].offsets])
        lists = plain[: strings // 4] + [[rnd.randrange(size) for _ in range(rnd.randint(0, 12))] for _ in range(strings // 4)]
        for skip in (False, True):
            texts = self.run("decode", path, lists, *["--skip-special-tokens"] * skip)
            if isinstance(texts, str):
                compare("decoding", path, texts, "no error")
                continue
            for ids, text in zip(lists, texts, strict=True):
                theirs = safely(lambda: tok.decode(ids, skip_special_tokens=skip))
                if theirs is not None:
                    compare(f"text (special tokens skipped: {skip})", ids, text, theirs)
        self.wrong += differences


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megatron", required=True)
    parser.add_argument("--count", type=int, default=300, help="tokenizers")
    parser.add_argument("--strings", type=int, default=200, help="strings of each")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int, help="this one alone")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cases = Cases(args.megatron, folder)
        for number in range(args.count) if args.case is None else [args.case]:
            rnd = random.Random(f"{args.seed} {number}")
            text = fuzz.corpus(rnd)[:1000]
            while True:
                tok = safely(lambda: Settings(rnd).tokenizer(text))
                if tok and safely(lambda: tok.encode("a b the of and to in hello world " * 3)):
                    break
            cases.check(number, tok, rnd, args.strings)
    for reason, times in sorted(cases.refused.items()):
        print(f"refused {times} times: {reason}")
    print(f"{args.count} tokenizers, {cases.strings} strings, {cases.panics} of which the package panics at, {cases.wrong} differences "
          f"(seed {args.seed})")
    return 1 if cases.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
