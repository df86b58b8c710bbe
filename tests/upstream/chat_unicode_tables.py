#!/usr/bin/env python3
"""Writes Python's own character properties as ranges: unicode_properties.cpp and unicode_case.cpp.

usage: chat_unicode_tables.py src/megatron/tokenizers/chat
"""
import pathlib
import sys
import unicodedata

CHARACTERS = [chr(c) for c in range(0x110000)]


def runs(points):
    """Groups ascending code points into (first, last, step) with step 1 or 2."""
    result = []
    for point in points:
        if result:
            first, last, step = result[-1]
            gap = point - last
            if gap == step or (first == last and gap <= 2):
                result[-1] = (first, point, gap)
                continue
        result.append((point, point, 1))
    return result


def mapping(change, otherwise):
    """What `change` does unlike `otherwise`: ranges (first, last, step, delta), and images of several characters."""
    simple, special = {}, []
    for character in CHARACTERS:
        image = change(character)
        if image == otherwise(character):
            continue
        if len(image) == 1:
            simple.setdefault(ord(image) - ord(character), []).append(ord(character))
        else:
            special.append((ord(character), *([ord(c) for c in image] + [0] * (3 - len(image)))))
    return sorted((*run, delta) for delta, points in simple.items() for run in runs(points)), special


def table(kind, name, rows):
    lines, line = [f"constexpr {kind} k{name}[] = {{"], "   "
    for row in rows:
        cell = " {" + ", ".join(map(str, row)) + "},"
        if len(line) + len(cell) > 110:
            lines.append(line)
            line = "   "
        line += cell
    return "\n".join(lines + [line, "};", ""])


def write(path, tables, result):
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    path.write_text(
        f"// Written by tests/upstream/chat_unicode_tables.py from Python {version}'s Unicode {unicodedata.unidata_version}.\n"
        '#include "megatron/tokenizers/chat/unicode_tables.h"\n\nnamespace megatron::chat {\nnamespace {\n\n'
        "// clang-format off\n" + "\n".join(tables) + "// clang-format on\n\n}  // namespace\n\n" + result +
        "\n}  // namespace megatron::chat\n")


PROPERTIES = {
    "Alpha": str.isalpha,
    "Decimal": str.isdecimal,
    "Digit": str.isdigit,
    "Numeric": str.isnumeric,
    "Unprintable": lambda c: not c.isprintable(),
    "Lower": str.islower,
    "Upper": str.isupper,
    "Title": lambda c: unicodedata.category(c) == "Lt",
}
MAPPINGS = {
    "Lower": (str.lower, str),
    "Upper": (str.upper, str),
    "Title": (str.title, str.upper),
    "Fold": (str.casefold, str.lower),
}

folder = pathlib.Path(sys.argv[1])
write(folder / "unicode_properties.cpp",
      [table("CodeRange", name, runs([ord(c) for c in CHARACTERS if test(c)])) for name, test in PROPERTIES.items()],
      "UnicodeProperties unicode_properties() {\n  return {" + ", ".join("k" + name for name in PROPERTIES) + "};\n}\n")
tables = []
for name, (change, otherwise) in MAPPINGS.items():
    simple, special = mapping(change, otherwise)
    tables += [table("CaseRange", "To" + name, simple), table("CaseSpecial", f"To{name}Special", special)]
pairs = ",\n          ".join(f"{{kTo{name}, kTo{name}Special}}" for name in MAPPINGS)
write(folder / "unicode_case.cpp", tables, "UnicodeCase unicode_case() {\n  return {" + pairs + "};\n}\n")
