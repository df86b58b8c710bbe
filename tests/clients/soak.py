"""Many requests to `megatron serve` with a small model, of which a third misbehave.

    python soak.py MEGATRON TOKENIZER_FOLDER [REQUESTS] [CLIENTS]

Trains a checkpoint for one iteration, serves it from a cache too small for all, and sends REQUESTS (10000) from CLIENTS (256)
at once: completions and chats, whole and streamed, with logprobs, schemas and several answers; clients that go away, read
slowly, send too much, malformed JSON, wrong UTF-8 or broken HTTP. Only 2xx and 4xx may come back, all of the cache has to be
free after each fifth, and the server's memory may grow by less than 1 % in the second half. Needs Python alone.
"""

import asyncio
import collections
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

megatron, tokenizer = sys.argv[1:3]
REQUESTS = int(sys.argv[3]) if len(sys.argv) > 3 else 10000
CLIENTS = int(sys.argv[4]) if len(sys.argv) > 4 else 256
PARTS = 5  # after each of which the server's memory is looked at
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}, "ok": {"type": "boolean"}}, "required": ["n", "ok"],
          "additionalProperties": False}
counts = collections.Counter()
wrong = []


def body(rng):
    stream = rng.random() < 0.5
    common = {"max_tokens": rng.randint(1, 24), "stream": stream, "temperature": rng.choice([0, 0.7, 1.0]), "seed": rng.randint(0, 99)}
    text = rng.choice(["Once upon a time ", "The train left at "]) * rng.randint(1, 6) + str(rng.randint(0, 999))
    kind = rng.random()
    if kind < 0.5:
        return "/v1/completions", common | {"prompt": text, "n": rng.choice([1, 1, 2]), "logprobs": rng.choice([None, 2]), "echo": rng.random() < 0.2}
    if kind < 0.6:
        return "/v1/completions", common | {"prompt": [[rng.randint(0, 200) for _ in range(rng.randint(1, 40))] for _ in range(2)]}
    chat = common | {"messages": [{"role": "user", "content": text}]}
    if kind < 0.7:
        chat |= {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}, "max_tokens": 60}
    return "/v1/chat/completions", chat


def post(path, content):
    return (f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
            f"Content-Length: {len(content)}\r\n\r\n").encode() + content


async def read_all(reader, slowly=None):
    answer = b""
    while part := await reader.read(512 if slowly else 65536):
        answer += part
        if slowly:
            await asyncio.sleep(slowly.random() * 0.02)
    return answer


async def one(number, host, port):
    rng = random.Random(number)
    path, content = body(rng)
    encoded = json.dumps(content).encode()
    kind, drops, slowly = rng.randint(0, 17), False, None
    if kind == 0:
        encoded = b'{"prompt": "' + b"x" * (2 << 20) + b'"}'
    elif kind == 1:
        encoded = encoded[:rng.randint(1, len(encoded) - 1)]
    elif kind == 2:
        encoded = encoded.replace(b'"', b'"\xc3\x28', 3)
    elif kind == 3:
        encoded = json.dumps(content | {rng.choice(["max_tokens", "temperature", "n"]): rng.choice(["x", -3, [1], {}, 10**30])}).encode()
    elif kind in (4, 5):
        drops = True
    elif kind == 6:
        slowly = rng
    request = post(path, encoded)
    if kind == 7:
        request = rng.choice([b"nonsense\r\n\r\n", request[:40] + b"\x00\xff" + request[40:], b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\nConnection: close\r\n\r\n"])
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(request)
        if drops:
            await asyncio.sleep(rng.random() * 0.3)
            counts["dropped"] += 1
            return
        try:
            await writer.drain()
        except ConnectionError:
            pass  # an answer may come before all is sent
        try:
            answer = await read_all(reader, slowly)
        except ConnectionError:
            answer = b""
        status = int(answer[9:12]) if answer[:5] == b"HTTP/" else 0
        if status == 0 and kind in (0, 7):
            counts["closed"] += 1  # before all of it was read
            return
        counts[status] += 1
        if not (200 <= status < 300 or 400 <= status < 500):
            wrong.append((status, kind, answer[:300]))
    finally:
        writer.close()


async def load(host, port, numbers):
    async def client():
        for number in numbers:
            await asyncio.wait_for(one(number, host, port), 120)
    await asyncio.gather(*(client() for _ in range(CLIENTS)))


def memory(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", open(f"/proc/{pid}/status").read())[1])


def metric(url, name):
    text = urllib.request.urlopen(url + "/metrics").read().decode()
    return float(re.search(rf"^{re.escape(name)}\{{[^}}]*\}} (\S+)", text, re.M)[1])


def settled(url):
    """Waits until nothing runs; the share of the cache that is in use then."""
    for _ in range(600):
        if metric(url, "vllm:num_requests_running") + metric(url, "vllm:num_requests_waiting") == 0:
            return metric(url, "vllm:kv_cache_usage_perc")
        asyncio.run(asyncio.sleep(0.1))
    raise SystemExit("requests are left although every client has gone")


with tempfile.TemporaryDirectory() as folder:
    flags = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", tokenizer]
    subprocess.run([megatron, "pretrain", *flags, "--num-layers", "2", "--hidden-size", "64", "--num-attention-heads", "4",
                    "--seq-length", "256", "--max-position-embeddings", "256", "--micro-batch-size", "1", "--global-batch-size", "1",
                    "--train-iters", "1", "--lr", "1e-3", "--mock-data", "--save", folder + "/ckpt", "--device", "cpu"], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    open(folder + "/chat.jinja", "w").write("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:")
    # Each thread keeps a few freed blocks of every small size. These caches take more requests than this to fill, and say
    # nothing of what the server itself keeps.
    environment = os.environ | {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
    server = subprocess.Popen([megatron, "serve", "--ckpt", folder + "/ckpt", *flags, "--chat-template", folder + "/chat.jinja",
                               "--port", "0", "--device", "cpu", "--kv-cache-gib", "0.004", "--max-body-mib", "1",
                               "--max-queue", "400", "--num-speculative-tokens", "2"], stdout=subprocess.PIPE, text=True,
                              env=environment)
    try:
        url = re.search(r"http://\S+", server.stdout.readline())[0]
        host, port = re.fullmatch(r"http://(.*):(\d+)", url).groups()
        numbers, held = iter(range(REQUESTS)), []
        for _ in range(PARTS):
            part = [next(numbers) for _ in range(REQUESTS // PARTS)]
            asyncio.run(load(host, int(port), iter(part)))
            used = settled(url)
            assert used == 0
            time.sleep(3)  # in which the server rests, and gives back what the load alone has needed
            held.append(memory(server.pid))
        evictions = metric(url, "vllm:num_preemptions_total")
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(60)
print(dict(counts.most_common()), f"{evictions:.0f} evictions, memory {held} KiB, cache in use {used}, exit {code}")
assert not wrong, wrong[:5]
assert counts[200] > REQUESTS / 3 and counts[400] > 0 and counts[413] > 0, counts
assert used == 0 and code == 0
assert REQUESTS < 3000 or held[-1] < held[PARTS // 2] * 1.01, "the server's memory grew"
