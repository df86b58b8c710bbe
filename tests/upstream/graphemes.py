#!/usr/bin/env python3
"""Grapheme clusters of every code point, as the compiled normalizer of `tokenizers` cuts them and as `megatron` does.

Needs tokenizers (pip). A cluster of up to five bytes is replaced as a whole by what its first character is mapped to, a
longer one character by character: so which characters a map leaves alone tells where clusters end. Two maps are asked:
one replaces each character of up to three bytes, the other a few of each length. Ends with 1 where there are differences.

1. every code point behind and in front of characters of each class, alone and with a mark behind it
2. every sequence of up to --length characters, one or more of each class

usage: graphemes.py --megatron BINARY [--length 4] [--neighbours 10]
"""
import argparse
import base64
import itertools
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

# Letters of one to three bytes, a jamo, a Hangul syllable, emoji, ZWJ, regional indicator, a sign that is put before.
NEIGHBOURS = ["a", "é", "あ", "\u1100", "가", "©", "😀", "\u200d", "🇩", "\u0600"]
CLASSES = ["a", "é", "\r", "\x01", "\x00", "\u200d", "\u094d", "\u0301", "\u200c", "\u0903", "\u0600", "\u0d4e", "🇩", "\u1100", "\u1161", "\u11a8",
           "가", "각", "😀", "©", "\u0915", "\u1000"]


def compiled_map(characters):
    """A double array (the form of precompiled_charsmap) that maps each character to X."""
    keys = {c.encode() for c in characters}
    prefixes = {key[:i] for key in keys for i in range(len(key))}
    block = {prefix: 256 * i for i, prefix in enumerate(sorted(prefixes))}  # children of a node lie in a block of their own
    value = 256 * len(block)
    units = [1 << 31] * (value + 256)  # no label: matches nothing
    units[value] = 1 << 31  # offset 0 of the replacements

    def offset(distance):
        assert distance < 1 << 21
        return distance << 10

    for key in prefixes | keys:
        if not key:
            units[0] = offset(block[b""])
            continue
        at = block[key[:-1]] ^ key[-1]
        leaf = key in keys
        units[at] = offset(at ^ (value if leaf else block[key])) | leaf << 8 | key[-1]
    # The root lies in the block of its own children, as its first unit: no key begins with byte 0.
    return struct.pack("<I", 4 * len(units)) + struct.pack(f"<{len(units)}I", *units) + b"X\0"


def tokenizer_of(blob):
    """Ids are the bytes of the normalized text."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    settings = json.loads(Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[])).to_str())
    settings["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(blob).decode()}
    settings["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return json.dumps(settings)


def compare(megatron, file, tokenizer, name, texts):
    """Texts of a line each, many to a text; where one differs, its lines are compared one by one."""
    joined = ["\n".join(texts[i:i + 500]) for i in range(0, len(texts), 500)] if len(texts) > 500 else texts
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".jsonl") as lines:
        for text in joined:
            lines.write(json.dumps(text) + "\n")
        lines.flush()
        out = subprocess.run([megatron, "tokenizer", "encode", "--input", lines.name, "--tokenizer-type", "HuggingFaceTokenizer",
                              "--tokenizer-model", file], capture_output=True, check=True)
    wrong = 0
    theirs = tokenizer.encode_batch_fast(joined, add_special_tokens=False)
    for text, line, expected in zip(joined, out.stdout.splitlines(), theirs, strict=True):
        if json.loads(line) == expected.ids:
            continue
        if joined is not texts:
            wrong += compare(megatron, file, tokenizer, name, text.split("\n"))
            continue
        wrong += 1
        if wrong <= 5:
            print(f"  {name}: {ascii(text)}: {json.loads(line)}, {expected.ids} expected")
    return wrong


def main():
    from tokenizers import Tokenizer

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megatron", required=True)
    parser.add_argument("--length", type=int, default=4)
    parser.add_argument("--neighbours", type=int, default=len(NEIGHBOURS), help="the first of them")
    args = parser.parse_args()
    points = [chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
    maps = {"all of up to three bytes": [c for c in points[1:] if len(c.encode()) <= 3],
            "some": ["a", "é", "あ", "\u1161", "\u11a8", "\u0915", "\u0301", "😀", "🇩", "\U0001f3fb"]}
    wrong = total = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, characters in maps.items():
            file = pathlib.Path(folder) / "tokenizer.json"
            file.write_text(tokenizer_of(compiled_map(characters)))
            tokenizer = Tokenizer.from_file(str(file))

            def check(texts):
                nonlocal wrong, total
                texts = iter(texts)
                while part := list(itertools.islice(texts, 500000)):
                    wrong += compare(args.megatron, str(file), tokenizer, name, part)
                    total += len(part)

            for n in NEIGHBOURS[: args.neighbours]:
                check(form for c in points if c != "\n" for form in (n + c, n + c + "\u0301", c + n))
                print(f"{name}: every code point beside {ascii(n)}: {total} texts so far, {wrong} differences", flush=True)
            for length in range(1, args.length + 1):
                check("".join(parts) for parts in itertools.product(CLASSES, repeat=length))
            print(f"{name}: {total} texts so far, {wrong} differences", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
