"""What a person at a terminal sees of `megatron serve` and `megatron chat`.

    python serve_check.py MEGATRON TOKENIZER_FOLDER

Trains a checkpoint for one iteration and serves it. Needs Python alone, and ends with one line; a check that fails raises.
"""

import http.client
import json
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import time

megatron, tokenizer = sys.argv[1:3]
FLAGS = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", tokenizer]
LONG = {"prompt": "Hello", "max_tokens": 15000, "ignore_eos": True}


class Server:
    """One `megatron serve`, whose end is looked at."""

    def __init__(self, folder, *flags):
        self.process = subprocess.Popen([megatron, "serve", "--ckpt", folder + "/ckpt", *FLAGS, "--chat-template", folder + "/chat.jinja",
                                         "--port", "0", "--device", "cpu", "--kv-cache-gib", "0.1", *flags], stdout=subprocess.PIPE, text=True)
        self.url = re.fullmatch(r"serving at (http://\S+)\n", self.process.stdout.readline())[1]
        self.port = int(self.url.rpartition(":")[2])

    def __enter__(self):
        return self

    def __exit__(self, fault, *_):
        if fault:
            return self.process.kill()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0

    def start(self, path, body=None, **headers):
        """A request whose answer is still to be read."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("POST" if body is not None else "GET", path, body if isinstance(body, (bytes, type(None))) else json.dumps(body), headers)
        return connection

    def ask(self, path, body=None, **headers):
        connection = self.start(path, body, **headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, answer.headers, json.loads(text) if answer.headers["Content-Type"] == "application/json" else text

    def metric(self, name):
        return float(re.search(rf"^vllm:{name}\{{[^}}]*\}} (\S+)", self.ask("/metrics")[2], re.M)[1])

    def wait_for(self, name, value):
        end = time.time() + 60
        while self.metric(name) != value:
            assert time.time() < end, (name, self.metric(name), value)
            time.sleep(0.02)


def check_answers(folder):
    with Server(folder, "--max-queue", "2", "--max-body-mib", "1") as server:
        assert server.ask("/v1/models")[2]["data"][0]["id"] == "ckpt"  # not the iteration's folder
        # A queue that is full says when to come back; the places of clients that go away are free again.
        waiting = [server.start("/v1/completions", LONG | {"stream": stream}) for stream in (False, True)]
        server.wait_for("num_requests_running", 2)
        assert server.metric("kv_cache_usage_perc") > 0
        status, headers, answer = server.ask("/v1/completions", {"prompt": "Hello"})
        assert status == 429 and int(headers["Retry-After"]) > 0 and answer["error"]["message"], (status, answer)
        waiting[1].getresponse().read(100)
        for connection in waiting:
            connection.close()
        server.wait_for("num_requests_running", 0)
        assert server.metric("kv_cache_usage_perc") == 0
        assert server.ask("/v1/completions", {"prompt": "Hello", "max_tokens": 3})[0] == 200
        status, _, answer = server.ask("/v1/completions", b"x" * (3 << 20))
        assert status == 413 and "1048576" in answer["error"]["message"]


def check_keys(folder):
    with Server(folder, "--api-key", "sesame", "--host", "localhost", "--served-model-name", "A") as server:
        assert server.ask("/v1/models")[0] == server.ask("/v1/models", Authorization="Bearer sesam")[0] == 401
        for scheme in ("Bearer", "bearer"):
            assert server.ask("/v1/models", Authorization=f"{scheme} sesame")[2]["data"][0]["id"] == "A"


def check_ends(folder):
    """SIGTERM lets answers end; those that have no time for it are told."""
    with Server(folder) as server:
        stream = server.start("/v1/completions", {"prompt": "Hello", "max_tokens": 500, "ignore_eos": True, "stream": True}).getresponse()
        first = stream.read(50)
        server.process.send_signal(signal.SIGTERM)
        assert (first + stream.read()).endswith(b"data: [DONE]\n\n")
    with Server(folder, "--drain-timeout", "0") as server:
        stream = server.start("/v1/completions", LONG | {"stream": True}).getresponse()
        stream.read(50)
        server.process.send_signal(signal.SIGTERM)
        assert b"the server is shutting down" in stream.read()


def check_chat(folder):
    chat = [megatron, "chat", "--ckpt", folder + "/ckpt", *FLAGS, "--chat-template", folder + "/chat.jinja", "--device", "cpu", "--max-tokens", "5"]
    ended = subprocess.run(chat, input="Hello\n\n/clear\nAgain\n/exit\nno more", text=True, capture_output=True)
    assert ended.returncode == 0 and ended.stdout.count("\n") >= 2 and not ended.stderr, ended
    ended = subprocess.run([*chat, "--max-tokens", "90000"], input="Hello\nAgain", text=True, capture_output=True)
    assert ended.returncode != 0 and ended.stderr.count("maximum context length") == 1, ended
    # In a terminal a refusal ends nothing.
    ours, its = pty.openpty()
    process = subprocess.Popen([*chat, "--max-tokens", "90000"], stdin=its, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    os.close(its)
    os.write(ours, b"Hello\nAgain\n/exit\n")
    _, said = process.communicate(timeout=120)
    os.close(ours)
    assert process.returncode == 0 and said.count("maximum context length") == 2, said


with tempfile.TemporaryDirectory() as folder:
    subprocess.run([megatron, "pretrain", *FLAGS, "--num-layers", "2", "--hidden-size", "64", "--num-attention-heads", "4",
                    "--seq-length", "64", "--max-position-embeddings", "16384", "--position-embedding-type", "rope", "--micro-batch-size", "1",
                    "--global-batch-size", "1", "--train-iters", "1", "--lr", "1e-3", "--mock-data", "--save", folder + "/ckpt",
                    "--device", "cpu"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    open(folder + "/chat.jinja", "w").write("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:")
    for check in (check_answers, check_keys, check_ends, check_chat):
        check(folder)
print("answers, keys, ends and conversations are as they should be")
