"""Texts that our masks let through, against the package jsonschema: random schemas, and random texts of each.

    python schema_check.py BUILD/tests/upstream/schema_texts [SCHEMAS] [SEED]

Needs jsonschema and rfc3339-validator. Ends with one line of counts; a text that does not satisfy its schema ends it
with exit code 1.
"""

import json
import random
import subprocess
import sys

import jsonschema

FORMATS = ["date", "time", "date-time", "email", "ipv4", "uuid"]
PATTERNS = ["^[a-z]{1,4}$", "[0-9]+", "^(foo|bar)-\\d{2}$", "^\\w+\\s\\S$", "\"|\\\\", "^[^a-z]{2}"]


def schema(depth, names):
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "format", "pattern", "types"]
    if depth > 0:
        kinds += ["object", "array", "anyOf", "ref", "tuple", "oneOf"] * 2
    kind = random.choice(kinds)
    if kind == "string":
        low = random.randint(0, 3)
        return {"type": "string", **random.choice([{}, {"minLength": low}, {"minLength": low, "maxLength": low + 4}])}
    if kind in ("integer", "number"):
        low = random.randint(-1200, 1200)
        high = low + random.choice([1, 2, 9, 100, 12345])
        bounds = random.choice([{}, {"minimum": low}, {"maximum": high}, {"minimum": low, "maximum": high},
                                {"exclusiveMinimum": low, "maximum": high + 1},
                                {"exclusiveMinimum": low, "exclusiveMaximum": high + 1}])
        return {"type": kind, **bounds}
    if kind == "enum":
        return {"enum": random.sample([1, -2.5, "a", "b\"c", None, True, [1], {"k": "v"}, "ä"], 3)}
    if kind == "const":
        return {"const": random.choice([0, "x\ny", [], {"a": {}}])}
    if kind == "format":
        return {"type": "string", "format": random.choice(FORMATS)}
    if kind == "pattern":
        return {"type": "string", "pattern": random.choice(PATTERNS)}
    if kind == "types":
        return {"type": random.sample(["string", "integer", "null", "boolean", "array", "object"], 2)}
    if kind == "object":
        keys = random.sample(["a", "ab", "name", "ä", "q\"", "x y", "0"], random.randint(0, 5))
        result = {"type": "object", "properties": {key: schema(depth - 1, names) for key in keys}}
        result["required"] = random.sample(keys, random.randint(0, len(keys)))
        result.update(random.choice([{}, {"additionalProperties": False}, {"additionalProperties": True},
                                     {"additionalProperties": schema(0, names)}]))
        return result
    if kind == "array":
        low = random.randint(0, 2)
        return {"type": "array", "items": schema(depth - 1, names),
                **random.choice([{}, {"minItems": low}, {"minItems": low, "maxItems": low + 2}])}
    if kind == "tuple":
        return {"type": "array", "prefixItems": [schema(depth - 1, names) for _ in range(2)],
                **random.choice([{}, {"items": False}, {"items": schema(0, names)}, {"minItems": 1}])}
    if kind == "anyOf":
        return {"anyOf": [schema(depth - 1, names) for _ in range(random.randint(1, 3))]}
    if kind == "oneOf":
        return {"oneOf": [{"type": "object", "properties": {"t": {"const": tag}, "v": schema(depth - 1, names)},
                           "required": ["t"]} for tag in ("a", "b")]}
    if kind == "ref":
        return {"$ref": "#/$defs/" + random.choice(names)}
    return {"type": kind}


def main():
    program, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 300
    random.seed(int(sys.argv[3]) if len(sys.argv) > 3 else 1)
    schemas = []
    for _ in range(count):
        names = ["one", "two"]
        whole = schema(3, names)
        whole["$defs"] = {name: schema(2, names) for name in names}
        schemas.append(whole)
    lines = "\n".join(json.dumps(one, ensure_ascii=False) for one in schemas) + "\n"
    output = subprocess.run([program], input=lines.encode(), stdout=subprocess.PIPE, check=True).stdout.decode()
    checked = refused = wrong = 0
    reasons = {}
    for one, line in zip(schemas, output.rstrip("\n").split("\n"), strict=True):
        answer = json.loads(line)
        if isinstance(answer, dict):
            refused += 1
            reason = answer["error"].split(": ", 2)[-1]
            reasons[reason[-60:]] = reasons.get(reason[-60:], 0) + 1
            if "dead end" in answer["error"]:
                wrong += 1
                print("dead end:", json.dumps(one), answer["error"][:300])
            continue
        check = jsonschema.Draft202012Validator(one, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
        for text in answer:
            checked += 1
            problem = None
            try:
                problem = next(check.iter_errors(json.loads(text)), None)
            except ValueError as error:
                problem = error
            if problem is not None:
                wrong += 1
                print("wrong:", json.dumps(one), "\n  ", text[:300], "\n  ", str(problem)[:300])
    for reason, times in sorted(reasons.items(), key=lambda item: -item[1])[:8]:
        print(f"refused {times}: {reason}")
    print(f"{count} schemas, {refused} refused, {checked} texts, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
