"""ratios.py OURS... -- THEIRS...: the shortest time of each row of several runs, and theirs over ours."""
import json
import sys


def shortest(paths):
    times = {}
    for path in paths:
        with open(path) as file:
            document = json.load(file)
        for row in document["ops"]:
            key = (row["op"], row["shape"], row["dtype"], row["pass"])
            times[key] = min(times.get(key, float("inf")), row["ms"])
        for row in document["overhead"]:
            for part in ("forward", "recorded", "backward"):
                key = ("one-element " + row["op"], "1", "fp32", part)
                times[key] = min(times.get(key, float("inf")), row[part + "_ns"] * 1e-6)
    return times


def main():
    middle = sys.argv.index("--")
    ours, theirs = shortest(sys.argv[1:middle]), shortest(sys.argv[middle + 1:])
    print(f"{'op':<20}  {'shape':<24}  {'dtype':<5}  {'pass':<16}  {'ours ms':>10}  {'torch ms':>10}  {'ratio':>6}")
    for key, ms in ours.items():
        if key not in theirs:
            continue
        op, shape, dtype, name = key
        print(f"{op:<20}  {shape:<24}  {dtype:<5}  {name:<16}  {ms:>10.5g}  {theirs[key]:>10.5g}  {theirs[key] / ms:>6.2f}")


if __name__ == "__main__":
    main()
