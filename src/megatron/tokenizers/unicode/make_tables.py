#!/usr/bin/env python3
"""Writes unicode_data.inc: character properties, decompositions and lower case, packed.

Three Unicode versions stand behind the packages that we follow, found by asking them about every code point
(tokenizers 0.23, tiktoken 0.14): regular expressions use 16.0, NF* normalization and combining marks 9.0, Bert's
punctuation, control characters and accents 8.0, lower case and is_numeric 17.0. Older versions are the 16.0 data of
the characters that existed then (perl knows when each came), with the few whose category changed since.

usage: pip install unicodedata2==16.0.0; make_tables.py > unicode_data.inc
"""
import base64
import subprocess
import unicodedata

import unicodedata2 as u16

assert u16.unidata_version == "16.0.0"
POINTS = [c for c in range(0x110000)]
CATEGORIES = "Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co".split()
ASCII_PUNCTUATION = set(map(ord, "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"))
# Lu and N of 17.0 that 16.0 lacks: tests find them as differences where a package knows them.
NUMERIC_17 = [0x11DE0 + i for i in range(10)] + [0x16FF4, 0x16FF5, 0x16FF6]
LOWER_17 = {0xA7CE: 0xA7CF, 0xA7D2: 0xA7D3, 0xA7D4: 0xA7D5, **{0x16EA0 + i: 0x16EBB + i for i in range(25)}}


def present_in(version):
    """The code points that were assigned in a version."""
    program = r"""my $re = qr/^\p{Present_In=%s}$/; for my $c (0..0x10FFFF) {
        print "$c\n" if !($c >= 0xD800 && $c <= 0xDFFF) && chr($c) =~ $re; }""" % version
    return set(map(int, subprocess.run(["perl", "-e", program], check=True, capture_output=True).stdout.split()))


def varint(n):
    out = bytearray()
    while n >= 128:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def zigzag(n):
    return varint(n << 1 if n >= 0 else -n * 2 - 1)


def lower_of(c):
    """Unicode's full mapping of one character, without context."""
    if c in LOWER_17:
        return [LOWER_17[c]]
    text = [ord(x) for x in chr(c).lower()]
    if text == [c] and u16.category(chr(c)) == "Lu" and unicodedata.category(chr(c)) == "Cn":
        name = u16.name(chr(c)).replace("CAPITAL", "SMALL")
        try:
            return [ord(u16.lookup(name))]
        except KeyError:
            pass
        raise SystemExit(f"no lower case known for {c:x} {name}")
    return text


def runs(values):
    """(length, value) of equal neighbours."""
    out = []
    for v in values:
        if out and out[-1][1] == v:
            out[-1][0] += 1
        else:
            out.append([1, v])
    return out


def emit(name, data):
    text = base64.b64encode(data).decode()
    print(f"constexpr char {name}[] =")
    lines = [text[i:i + 114] for i in range(0, len(text), 114)]
    for i, line in enumerate(lines):
        print(f'    "{line}"' + (";" if i + 1 == len(lines) else ""))


def main():
    in8, in9 = present_in("8.0"), present_in("9.0")
    category = ["Cs" if 0xD800 <= c <= 0xDFFF else u16.category(chr(c)) for c in POINTS]

    punctuation8 = {c for c in in8 if category[c][0] == "P"} ^ {0x166D, 0x111C9} | ASCII_PUNCTUATION
    nonspacing8 = {c for c in in8 if category[c] == "Mn"} ^ {0x1734, 0x1885, 0x1886, 0xA9BD, 0x111C9, 0x1171E}
    control8 = {c for c in in8 if category[c] in ("Cc", "Cf", "Co")}
    mark9 = {c for c in in9 if category[c][0] == "M"} ^ {0x1CF2, 0x1CF3, 0x111C9}
    other_alphabetic = [*range(0x24B6, 0x24EA), *range(0x1F130, 0x1F14A), *range(0x1F150, 0x1F16A), *range(0x1F170, 0x1F18A)]
    word = {c for c in POINTS if category[c][0] in "LM" or category[c] in ("Nd", "Nl", "Pc")} | {0x200C, 0x200D, *other_alphabetic}
    numeric = {c for c in POINTS if category[c][0] == "N"} | set(NUMERIC_17)
    space = {*range(9, 14), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}
    sets = [punctuation8, nonspacing8, control8, mark9, word, numeric, space]

    def properties(c):
        return CATEGORIES.index(category[c]) | sum(32 << i for i, s in enumerate(sets) if c in s)

    kinds = sorted({properties(c) for c in POINTS})
    index = {k: i for i, k in enumerate(kinds)}
    print("// clang-format off")
    print("// Made by make_tables.py; Unicode 16.0, with the older and newer sets that it names.")
    print("constexpr uint16_t kKinds[] = {")
    for i in range(0, len(kinds), 16):
        print("    " + "".join(f"{kind}, " for kind in kinds[i:i + 16]).rstrip())
    print("};")
    emit("kKindRuns", b"".join(varint(n) + varint(v) for n, v in runs(index[properties(c)] for c in POINTS)))
    emit("kCombiningRuns", b"".join(varint(n) + varint(v) for n, v in runs(u16.combining(chr(c)) if c in in9 else 0 for c in POINTS)))

    data, last = b"", 0
    for c in sorted(in9):
        text = u16.decomposition(chr(c))
        if not text or 0xAC00 <= c <= 0xD7A3:
            continue
        parts = text.split()
        compatible = parts[0].startswith("<")
        points = [int(p, 16) for p in parts[compatible:]]
        composes = not compatible and len(points) == 2 and u16.normalize("NFC", chr(c)) == chr(c)
        data += varint(c - last) + varint(len(points) << 2 | compatible << 1 | composes)
        last = c
        for p in points:
            data += zigzag(p - last)
            last = p
        last = c
    emit("kDecompositions", data)

    data, last = b"", 0
    for c in POINTS:
        if 0xD800 <= c <= 0xDFFF:
            continue
        points = lower_of(c)
        if points != [c]:
            data += varint(c - last) + varint(len(points)) + b"".join(zigzag(p - c) for p in points)
            last = c
    emit("kLowerCase", data)


if __name__ == "__main__":
    main()
