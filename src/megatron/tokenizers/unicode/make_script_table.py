#!/usr/bin/env python3
"""Writes script_data.inc: which code points the pre-tokenizer UnicodeScripts of `tokenizers` keeps together, packed.

The package is asked: a code point that alone gives no word belongs to any script (0), others have the number of the first
one that they make a word with. Hiragana, Katakana and Han are one script to it.

usage: pip install tokenizers==0.23.3 unicodedata2==16.0.0; make_script_table.py > script_data.inc
"""
import importlib.metadata

from make_tables import emit, runs, varint
from tokenizers import pre_tokenizers

assert importlib.metadata.version("tokenizers") == "0.23.3"


def main():
    words = pre_tokenizers.UnicodeScripts().pre_tokenize_str
    first = []  # of each script
    last = 0

    def script_of(point):
        nonlocal last
        if 0xD800 <= point <= 0xDFFF or not words(chr(point)):
            return 0
        if not last or len(words(first[last - 1] + chr(point))) > 1:
            last = next((i for i, one in enumerate(first, 1) if len(words(one + chr(point))) == 1), 0)
        if not last:
            first.append(chr(point))
            last = len(first)
        return last

    print("// clang-format off")
    print("// Made by make_script_table.py; tokenizers 0.23.3.")
    emit("kScriptRuns", b"".join(varint(n) + varint(v) for n, v in runs(script_of(c) for c in range(0x110000))))
    assert len(first) < 256


if __name__ == "__main__":
    main()
