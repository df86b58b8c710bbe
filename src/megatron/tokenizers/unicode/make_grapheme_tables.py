#!/usr/bin/env python3
"""Writes grapheme_data.inc: what UAX #29 needs to know about each code point to find grapheme clusters, packed.

`tokenizers` 0.23 cuts clusters by Unicode 17.0; tests/upstream/graphemes.py asks it about every code point. Hangul
syllables are left out: their class follows from their number.

usage: pip install regex==2025.11.3 unicodedata2==16.0.0; make_grapheme_tables.py > grapheme_data.inc
"""
import importlib.metadata

import regex

from make_tables import emit, runs, varint

assert importlib.metadata.version("regex") == "2025.11.3"  # has Unicode 17.0
# In the order of GraphemeClass in graphemes.cpp. Extend is split by what GB9c makes of it.
CLASSES = [
    "GCB=CR", "GCB=LF", "GCB=Control", "GCB=ZWJ", "InCB=Linker", "InCB=Extend", "GCB=Extend", "GCB=SpacingMark", "GCB=Prepend",
    "GCB=Regional_Indicator", "GCB=L", "GCB=V", "GCB=T", "Extended_Pictographic", "InCB=Consonant",
]


def main():
    patterns = [regex.compile(rf"\p{{{name}}}") for name in CLASSES]

    def class_of(point):
        if 0xD800 <= point <= 0xDFFF:
            return 0
        return next((i for i, pattern in enumerate(patterns, 1) if pattern.match(chr(point))), 0)

    print("// clang-format off")
    print("// Made by make_grapheme_tables.py; Unicode 17.0.")
    emit("kGraphemeRuns", b"".join(varint(n) + varint(v) for n, v in runs(class_of(c) for c in range(0x110000))))


if __name__ == "__main__":
    main()
