#!/usr/bin/env python3
"""Random and adversarial strings through `megatron tokenizer` and the packages that it follows; they must agree.

Needs tokenizers, tiktoken, sentencepiece and protobuf (pip). Every case trains a small vocabulary of its own, so nothing
is downloaded. Ends with 1 and the first differences where there are any.

Kinds are byte-bpe, bpe, wordpiece, unigram, wordlevel, tiktoken, sentencepiece-bpe and sentencepiece-unigram; the cases of
a kind share its --count strings.

usage: tokenizers_fuzz.py --megatron BINARY [--count 20000] [--seed 1] [--kinds KIND,...] [--only NAME]
"""
import argparse
import base64
import io
import json
import pathlib
import random
import subprocess
import sys
import tempfile

GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
LLAMA3 = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
CL100K = r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
REST = r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{SUFFIX}|{REST}"
V1 = r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
V2 = O200K.replace(SUFFIX, "").replace(r"\p{N}{1,3}", r"\p{N}")
# Patterns without a scanner: the regular expressions of several published tokenizers.
OTHERS = [
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
    r"[一-龥぀-ゟ゠-ヿ]+", r"\p{N}{1,3}", r"\s?\p{L}+|\s?\p{N}+?|[^\s]", r"(?=(\d{3})+(?!\d))", r"[^\W\d]+|\d|\s+$|\s+",
    r"(?i)ab+c?|x(?:yz)*|\b\w", r"[\p{L}&&[^\p{Lu}]]+|[[:punct:]]", r"(?<=a)b|(?<!\s)c|[^\n]?",
]

WORDS = ("the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which "
         "model training tensor pipeline gradient token hello world function return class import value number language "
         "don't can't we're I'll it's they've 2024 12345 3.14159 naïve café straße Привет мир это текст 你好 世界 今天 "
         "こんにちは カタカナ 안녕하세요 שלום عالم हिन्दी ไทย 😀 🎉 ∑ ½ def f(x): { } += -> <html> &amp; http://a.b/c?d=e").split()
SPACES = [" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2003", "\u0085", "\u2028", "\x0b", "\u200b", "\x1c", " \n ", "\n\n  "]
PIECES = ["'s", "'S", "'ſ", "'ll", "'LL", "'re", "'", "’s", "▁", "▁▁", "Ġ", "##", "<s>", "</s>", "<unk>", "<|x|>", "[MASK]", "<0x0A>",
          "İ", "ß", "ẞ", "ﬁ", "Σ", "ς", "Å", "é", "e\u0301", "\u1100\u1161\u11a8", "각", "\u0323\u0307", "\u0345", "K", "㍿", "½", "²", "Ⅷ",
          "１２３", "٣٤", "ｶﾞ", "が", "か\u3099", "\ufeff", "\u200d", "\ufffd", "\x00", "\x7f", "\U0010ffff", "\ue000", "𝔘", "🇩🇪",
          "👨‍👩‍👧", "1st", "A1b2", "ABCdef", "aBC", "HTTPServer", "//", "/\n", "!?\n\n", "…", "$5", "_x_", "C++", "ǅ", "ʰ", "ªº"]


def random_text(rnd, pieces):
    """A string of words, spaces, odd characters, and pieces of the vocabulary at hand, whole and cut."""
    parts = []
    for _ in range(rnd.randint(1, 12)):
        kind = rnd.random()
        if kind < 0.1:
            piece = rnd.choice(pieces)
            parts.append(piece if rnd.random() < 0.7 else piece[: rnd.randint(0, len(piece))])
        elif kind < 0.35:
            parts.append(rnd.choice(WORDS))
        elif kind < 0.55:
            parts.append(rnd.choice(SPACES))
        elif kind < 0.75:
            parts.append(rnd.choice(PIECES))
        elif kind < 0.85:
            parts.append("".join(chr(rnd.randrange(32, 127)) for _ in range(rnd.randint(1, 6))))
        elif kind < 0.93:
            base = rnd.choice([0xA0, 0x300, 0x400, 0x590, 0x900, 0xE00, 0x1100, 0x1E00, 0x2000, 0x2150, 0x3000, 0x3130, 0x4E00,
                               0xA640, 0xAC00, 0xF900, 0xFB00, 0xFE20, 0xFF00, 0x10D00, 0x11100, 0x1D400, 0x1E900, 0x1F100, 0x1F600])
            parts.append("".join(chr(base + rnd.randrange(0x100)) for _ in range(rnd.randint(1, 5))))
        else:
            parts.append("".join(chr(rnd.choice([rnd.randrange(0xD800), rnd.randrange(0xE000, 0x110000)])) for _ in range(rnd.randint(1, 4))))
        if rnd.random() < 0.4:
            parts.append(" ")
    text = "".join(parts)
    if rnd.random() < 0.02:
        text *= rnd.randint(2, 40)
    return text


def corpus(rnd):
    return [" ".join(rnd.choice(WORDS) for _ in range(rnd.randint(3, 14))) + rnd.choice([".", "!", "\n", "?"]) for _ in range(3000)]


ROUND = 20000  # strings that are compared at a time, which bounds memory


class Compare:
    def __init__(self, megatron, seed, folder):
        self.megatron, self.seed, self.folder = megatron, seed, pathlib.Path(folder)
        self.cases = []  # (kind, name, arguments, encode, decode, pieces, special)
        self.wrong = 0

    def add(self, kind, name, arguments, encode, decode, pieces, special=True):
        """encode(text, special) -> (ids, offsets or None); decode(ids) -> text; pieces are the vocabulary's, by id."""
        self.cases.append((kind, name, arguments, encode, decode, pieces, special))

    def path(self, suffix):
        return str(self.folder / f"{len(self.cases)}{suffix}")

    def run_all(self, count, kinds, only):
        chosen = [case for case in self.cases if (not kinds or case[0] in kinds) and only in case[1]]
        for kind in dict.fromkeys(case[0] for case in chosen):
            own = [case for case in chosen if case[0] == kind]
            share, total, before = -(-count // len(own)), 0, self.wrong
            for case in own:
                for done in range(0, share, ROUND):
                    self.check(*case[1:], strings=min(ROUND, share - done), turn=done // ROUND)
                total += share
            print(f"{kind}: {total} strings, {self.wrong - before} differences in {len(own)} cases", flush=True)

    def run(self, arguments, action, lines):
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".jsonl") as file:
            for line in lines:
                file.write(json.dumps(line) + "\n")
            file.flush()
            out = subprocess.run([self.megatron, "tokenizer", action, "--input", file.name, *arguments], capture_output=True, check=False)
        if out.returncode != 0:
            print("FAILED", arguments, out.stderr.decode()[:500])
            self.wrong += 1
            return None
        return [json.loads(line) for line in out.stdout.split(b"\n")[:-1]]

    def check(self, name, arguments, encode, decode, pieces, special, strings, turn):
        rnd = random.Random(f"{self.seed} {name} {turn}")
        texts = [random_text(rnd, pieces) for _ in range(strings)]
        differences = 0

        def tell(what, item, ours, theirs):
            nonlocal differences
            differences += 1
            if differences <= 3:
                print(f"  DIFFERENT {what} {item!r}\n    ours   {ours!r}\n    theirs {theirs!r}")

        fast = self.run(arguments, "encode", texts) or []
        full = self.run([*arguments, "--json"] + (["--add-special-tokens"] if special else []), "encode", texts) or []
        for text, ids, row in zip(texts, fast, full):
            their_ids, _ = encode(text, False)
            if ids != their_ids:
                tell("ids", text, ids, their_ids)
            their_ids, their_offsets = encode(text, special)
            if row["ids"] != their_ids:
                tell("ids with special tokens", text, row["ids"], their_ids)
            elif their_offsets is not None and row["offsets"] != their_offsets:
                tell("offsets", text, list(zip(row["pieces"], row["offsets"])), their_offsets)
        lists = [ids for ids in fast[: strings // 4]]
        lists += [[rnd.randrange(len(pieces)) for _ in range(rnd.randint(1, 12))] for _ in range(strings // 4)]
        for ids, text in zip(lists, self.run(arguments, "decode", lists) or []):
            theirs = decode(ids)
            if text != theirs:
                tell("text", ids, text, theirs)
        self.wrong += differences
        if differences:
            print(f"{name}: {differences} differences in {len(texts)} strings", flush=True)

    # ---------------------------------------------------------------- Hugging Face
    def hugging_face(self, name, tokenizer):
        from tokenizers import Tokenizer

        path = self.path(".json")
        tokenizer.save(path)
        own = Tokenizer.from_file(path)  # a copy: callers go on to change theirs
        byte_level = "ByteLevel" in json.dumps(json.loads(own.to_str())["decoder"])
        kind = type(own.model).__name__.lower()

        def encode(text, special):
            result = own.encode(text, add_special_tokens=special)
            return result.ids, [list(o) for o in result.offsets]

        pieces = [own.decode([i], skip_special_tokens=False) if byte_level else own.id_to_token(i) or "" for i in range(own.get_vocab_size())]
        self.add("byte-bpe" if kind == "bpe" and byte_level else kind, name, ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", path],
                 encode, lambda ids: own.decode(ids, skip_special_tokens=False), pieces)

    def all_hugging_face(self):
        from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

        rnd = random.Random(self.seed)
        text = corpus(rnd)

        def byte_bpe(pattern, normalizer=None, post=None, prefix=False, added=(), **model):
            tok = Tokenizer(models.BPE(**model))
            if pattern is None:
                tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=True)
            elif pattern == "":
                tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False)
            else:
                tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
                                                             pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False)])
            if normalizer:
                tok.normalizer = normalizer
            tok.decoder = decoders.ByteLevel()
            tok.train_from_iterator(text, trainers.BpeTrainer(vocab_size=900, special_tokens=["<s>", "</s>", "<|x|>"], show_progress=False,
                                                              initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
            if added:
                tok.add_tokens(list(added))
            tok.post_processor = post or processors.ByteLevel(trim_offsets=True)
            return tok

        template = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
        self.hugging_face("hf gpt2", byte_bpe(None))
        self.hugging_face("hf gpt2 prefix", byte_bpe(None, prefix=True))
        self.hugging_face("hf llama3", byte_bpe(LLAMA3, post=processors.Sequence([processors.ByteLevel(trim_offsets=False), template]), ignore_merges=True))
        self.hugging_face("hf qwen2 nfc", byte_bpe(QWEN2, normalizer=normalizers.NFC()))
        self.hugging_face("hf o200k", byte_bpe(O200K))
        self.hugging_face("hf cl100k", byte_bpe(CL100K))
        self.hugging_face("hf v2", byte_bpe(V2))
        self.hugging_face("hf no regex", byte_bpe(""))
        self.hugging_face("hf roberta", byte_bpe(None, prefix=True, post=processors.RobertaProcessing(("</s>", 1), ("<s>", 0))))
        self.hugging_face("hf added", byte_bpe(LLAMA3, normalizer=normalizers.Lowercase(), added=[
            AddedToken("hello", single_word=True), AddedToken("[MASK]", lstrip=True), AddedToken("##", rstrip=True),
            AddedToken("Ab", normalized=True), AddedToken("A1", normalized=False), AddedToken("</", normalized=False)]))
        for i, pattern in enumerate(OTHERS):
            self.hugging_face(f"hf regex {i}", byte_bpe(pattern))
        for i, behavior in enumerate(["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]):
            for invert in (False, True):
                tok = byte_bpe(None)
                tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"\p{N}|[aeiou ]"), behavior=behavior, invert=invert),
                                                             pre_tokenizers.ByteLevel(add_prefix_space=i == 1, use_regex=True)])
                self.hugging_face(f"hf split {behavior} {invert}", tok)

        def wordpiece(normalizer, pre, decoder=None):
            tok = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=30))
            tok.normalizer, tok.pre_tokenizer, tok.decoder = normalizer, pre, decoder or decoders.WordPiece()
            tok.train_from_iterator(text, trainers.WordPieceTrainer(vocab_size=700, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False))
            tok.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
            return tok

        bert = normalizers.BertNormalizer
        self.hugging_face("hf bert uncased", wordpiece(bert(), pre_tokenizers.BertPreTokenizer()))
        self.hugging_face("hf bert cased", wordpiece(bert(lowercase=False), pre_tokenizers.BertPreTokenizer()))
        self.hugging_face("hf bert accents", wordpiece(bert(clean_text=False, strip_accents=False), pre_tokenizers.Whitespace()))
        for name in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Strip", "Nmt"):
            self.hugging_face(f"hf {name}", wordpiece(getattr(normalizers, name)(), pre_tokenizers.WhitespaceSplit()))
        self.hugging_face("hf sequence", wordpiece(normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(),
                          normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip(), normalizers.Prepend("x")]), pre_tokenizers.Sequence([
                              pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Punctuation(), pre_tokenizers.WhitespaceSplit()])))
        self.hugging_face("hf digits", wordpiece(normalizers.NFD(), pre_tokenizers.Sequence([pre_tokenizers.Digits(), pre_tokenizers.CharDelimiterSplit(" ")])))

        # Llama 2: byte fallback, ▁ by the normalizer or by Metaspace.
        for scheme in ("normalizer", "always", "first", "never"):
            tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
            tok.pre_tokenizer = pre_tokenizers.Metaspace()
            special = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
            tok.train_from_iterator(text, trainers.BpeTrainer(vocab_size=1100, special_tokens=special, show_progress=False))
            saved = json.loads(tok.to_str())
            saved["added_tokens"] = [a for a in saved["added_tokens"] if a["id"] < 3]
            tok = Tokenizer.from_str(json.dumps(saved))
            if scheme == "normalizer":
                tok.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
                tok.pre_tokenizer = pre_tokenizers.Split("\x00", "isolated")
                tok.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
            else:
                tok.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=scheme != "first")
                tok.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme=scheme)])
            self.hugging_face(f"hf metaspace {scheme}", tok)
        tok = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
        tok.pre_tokenizer, tok.decoder, tok.normalizer = pre_tokenizers.Whitespace(), decoders.BPEDecoder(), normalizers.Lowercase()
        tok.train_from_iterator(text, trainers.BpeTrainer(vocab_size=700, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False))
        self.hugging_face("hf bpe suffix", tok)
        tok = Tokenizer(models.Unigram())
        tok.pre_tokenizer, tok.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        tok.normalizer = normalizers.NFKC()
        tok.train_from_iterator(text, trainers.UnigramTrainer(vocab_size=600, special_tokens=["<unk>", "<s>"], unk_token="<unk>", show_progress=False))
        self.hugging_face("hf unigram", tok)
        tok.normalizer = normalizers.Precompiled(self.char_map(text))
        self.hugging_face("hf unigram precompiled", tok)
        tok = Tokenizer(models.WordLevel(unk_token="<unk>"))
        tok.pre_tokenizer = pre_tokenizers.Whitespace()
        tok.train_from_iterator(text, trainers.WordLevelTrainer(special_tokens=["<unk>"], show_progress=False))
        self.hugging_face("hf word level", tok)

    # ---------------------------------------------------------------- tiktoken
    def all_tiktoken(self):
        import tiktoken
        from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

        text = corpus(random.Random(self.seed))
        keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
        rest = [b for b in range(256) if b not in keep]
        back = {chr(b): b for b in keep} | {chr(256 + i): b for i, b in enumerate(rest)}
        for name, pattern in (("v1", V1), ("v2", V2), ("cl100k", CL100K), ("o200k", O200K)):
            tok = Tokenizer(models.BPE())
            tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), behavior="isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
            tok.train_from_iterator(text, trainers.BpeTrainer(vocab_size=900, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
            ranks = {bytes([b]): b for b in range(256)}
            for a, b in json.loads(tok.to_str())["model"]["merges"]:
                ranks.setdefault(bytes(back[c] for c in a + b), len(ranks))
            special = {"<s>": len(ranks), "<|x|>": len(ranks) + 3}
            encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
            pieces = [encoding.decode([i]) for i in range(len(ranks))]

            def add(case, path, further, which, all_pieces, allowed):
                arguments = ["--tokenizer-type", "TikTokenizer", "--tiktoken-pattern", name, "--tokenizer-model", path, *further]
                self.add("tiktoken", f"tiktoken {name}{case}", arguments, lambda t, _: (which.encode(t, allowed_special=allowed, disallowed_special=()), None),
                         which.decode, all_pieces, False)

            path = self.path(".tiktoken")
            pathlib.Path(path).write_bytes(b"".join(base64.b64encode(k) + f" {v}\n".encode() for k, v in ranks.items()))
            add("", path, [], encoding, pieces, set())
            add(" special", path, ["--tokenizer-special-tokens", ",".join(f"{k}={v}" for k, v in special.items())], encoding, pieces, "all")
            # Upstream's JSON form: ids behind 20 special tokens.
            path = self.path(".json")
            pathlib.Path(path).write_text(json.dumps([{"rank": v, "token_bytes": base64.b64encode(k).decode(), "token_str": ""} for k, v in ranks.items()]))
            names = ["<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>"] + [f"<SPECIAL_{i}>" for i in range(7, 20)]
            shifted = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks={k: v + 20 for k, v in ranks.items()}, special_tokens={n: i for i, n in enumerate(names)})
            add(" json", path, ["--tiktoken-num-special-tokens", "20"], shifted, names + pieces, "all")

    # ---------------------------------------------------------------- sentencepiece
    def train_sentencepiece(self, text, **options):
        import sentencepiece as spm

        buffer = io.BytesIO()
        spm.SentencePieceTrainer.train(sentence_iterator=iter(x.replace("\n", " ") for x in text), model_writer=buffer, hard_vocab_limit=False,
                                       num_threads=1, minloglevel=2, **options)
        return buffer.getvalue()

    def char_map(self, text):
        """The compiled rules of a model: normalizer_spec (field 3), precompiled_charsmap (field 2)."""
        def fields(data):
            at = 0
            while at < len(data):
                def varint():
                    nonlocal at
                    value = shift = 0
                    while True:
                        byte = data[at]
                        at += 1
                        value |= (byte & 127) << shift
                        shift += 7
                        if byte < 128:
                            return value
                key = varint()
                if key & 7 == 2:
                    size = varint()
                    yield key >> 3, data[at:at + size]
                    at += size
                elif key & 7 == 0:
                    varint()
                else:
                    at += 4 if key & 7 == 5 else 8
        model = self.train_sentencepiece(text, model_type="unigram", vocab_size=500, normalization_rule_name="nmt_nfkc")
        return next(v for k, v in fields(next(v for k, v in fields(model) if k == 3)) if k == 2)

    def all_sentencepiece(self):
        import sentencepiece as spm

        text = corpus(random.Random(self.seed))
        identity = dict(normalization_rule_name="identity", remove_extra_whitespaces=False)
        cases = {
            "bpe llama": dict(model_type="bpe", vocab_size=900, byte_fallback=True, split_digits=True, allow_whitespace_only_pieces=True, **identity),
            "bpe gemma": dict(model_type="bpe", vocab_size=900, byte_fallback=True, add_dummy_prefix=False, allow_whitespace_only_pieces=True,
                              user_defined_symbols=["<|x|>", "  ", "   ", "\n", "ab"], **identity),
            "bpe nfkc": dict(model_type="bpe", vocab_size=700, character_coverage=0.98),
            "bpe across words": dict(model_type="bpe", vocab_size=900, split_by_whitespace=False, normalization_rule_name="nmt_nfkc_cf"),
            "unigram": dict(model_type="unigram", vocab_size=600),
            "unigram bytes": dict(model_type="unigram", vocab_size=900, byte_fallback=True, user_defined_symbols=["<|x|>", "the"], **identity),
            "unigram suffix": dict(model_type="unigram", vocab_size=600, treat_whitespace_as_suffix=True, normalization_rule_name="nfkc"),
        }
        for name, options in cases.items():
            model = self.train_sentencepiece(text, **options)
            path = self.path(".model")
            pathlib.Path(path).write_bytes(model)
            processor = spm.SentencePieceProcessor(model_proto=model)

            def encode(t, special, processor=processor):
                if not special:
                    return processor.encode(t, out_type=int), None
                count = [0]  # characters before each byte
                for c in t:
                    count += [count[-1]] * (len(c.encode()) - 1) + [count[-1] + 1]
                places = [[count[p.begin], count[p.end]] for p in processor.encode(t, return_type="proto").pieces]
                return processor.encode(t, out_type=int, add_bos=True, add_eos=True), [[0, 0], *places, [0, 0]]

            pieces = [processor.id_to_piece(i).replace("▁", " ") for i in range(processor.get_piece_size())]
            self.add(f"sentencepiece-{options['model_type']}", f"sentencepiece {name}",
                     ["--tokenizer-type", "SentencePieceTokenizer", "--tokenizer-model", path], encode, processor.decode, pieces)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megatron", required=True)
    parser.add_argument("--count", type=int, default=20000, help="strings of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default="", help="kinds to compare, all by default")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compare = Compare(args.megatron, args.seed, folder)
        compare.all_hugging_face()
        compare.all_tiktoken()
        compare.all_sentencepiece()
        compare.run_all(args.count, args.kinds.split(",") if args.kinds else [], args.only)
    print(f"{compare.wrong} differences in all")
    return 1 if compare.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
