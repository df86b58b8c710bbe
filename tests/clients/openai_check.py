"""What OpenAI's own Python client makes of the server.

    python openai_check.py URL [MODEL]              a server that is running
    python openai_check.py --script PROGRAM TOKENIZER_FOLDER   scripted_server, started here

Needs the package openai. Ends with one line; a check that fails raises.
"""

import asyncio
import json
import subprocess
import sys

try:
    import openai
except ImportError:
    print("the package openai is not installed")
    sys.exit(77)

SCRIPT = "<think>\nLet me see.\n</think>\n\nHello, wörld! 世界 1, 2, 3."
TOOL = {"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}}, "required": ["city"]}}}
ASK = [{"role": "user", "content": "Say hello."}]


def check(client, model, scripted):
    assert model in [one.id for one in client.models.list().data]

    answer = client.chat.completions.create(model=model, messages=ASK, max_tokens=60, temperature=0, logprobs=True,
                                            top_logprobs=3)
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert all(len(token.top_logprobs) == 3 and token.logprob <= 0 for token in answer.choices[0].logprobs.content)
    if scripted:
        assert message.content == "Hello, wörld! 世界 1, 2, 3.", message.content
        assert message.reasoning_content == "Let me see.\n"

    stream = client.chat.completions.create(model=model, messages=ASK, max_tokens=60, temperature=0, stream=True,
                                            stream_options={"include_usage": True})
    text, usage = "", None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
    assert text == message.content and usage.completion_tokens == answer.usage.completion_tokens

    with client.chat.completions.create(model=model, messages=ASK, max_tokens=200, stream=True) as dropped:
        next(iter(dropped))

    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}, "ok": {"type": "boolean"}},
              "required": ["n", "ok"], "additionalProperties": False}
    held = client.chat.completions.create(model=model, messages=ASK, max_tokens=200, response_format={
        "type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}})
    value = json.loads(held.choices[0].message.content)
    assert 1 <= value["n"] <= 9 and isinstance(value["ok"], bool)

    called = client.chat.completions.create(model=model, messages=ASK, max_tokens=200, tools=[TOOL], tool_choice="required",
                                            parallel_tool_calls=False)
    call = called.choices[0].message.tool_calls[0]
    assert call.function.name == "weather" and json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
    assert called.choices[0].finish_reason == "tool_calls"

    several = client.completions.create(model=model, prompt=["One", "Two"], n=2, max_tokens=8, seed=5)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    tokens = client.completions.create(model=model, prompt=[10, 20, 30], max_tokens=1, echo=True, logprobs=1, temperature=0)
    lists = tokens.choices[0].logprobs
    assert len(lists.token_logprobs) == 4 and lists.token_logprobs[0] is None and lists.token_logprobs[1] <= 0
    extra = client.completions.create(model=model, prompt="x", max_tokens=20, extra_body={
        "guided_regex": "(ab|cd){2}", "top_k": 5, "min_p": 0.01, "repetition_penalty": 1.1})
    assert extra.choices[0].text in ("abab", "abcd", "cdab", "cdcd")

    for wrong, fault in [({"model": "none"}, openai.NotFoundError), ({"temperature": -1}, openai.BadRequestError),
                         ({"max_tokens": 10**7}, openai.BadRequestError), ({"extra_body": {"frobnicate": 1}}, openai.BadRequestError)]:
        try:
            client.chat.completions.create(**{"model": model, "messages": ASK, **wrong})
        except fault as error:
            assert error.body["message"], error
        else:
            raise AssertionError(f"{wrong} was taken")


async def many(url, model, count):
    client = openai.AsyncOpenAI(base_url=url + "/v1", api_key="none")

    async def one(number):
        text = ""
        stream = await client.chat.completions.create(model=model, messages=ASK, max_tokens=20, stream=True, seed=number)
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
        return text

    return await asyncio.gather(*(one(number) for number in range(count)))


def run(url, model, scripted):
    check(openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0), model, scripted)
    assert len(asyncio.run(many(url, model, 64))) == 64
    print(f"openai {openai.__version__}: all checks hold")


def main():
    if sys.argv[1] != "--script":
        url = sys.argv[1].rstrip("/")
        model = sys.argv[2] if len(sys.argv) > 2 else openai.OpenAI(base_url=url + "/v1", api_key="none").models.list().data[0].id
        return run(url, model, False)
    with subprocess.Popen([sys.argv[2], sys.argv[3], SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        run(server.stdout.readline().strip(), "scripted", True)
        server.stdin.close()
        assert server.wait(timeout=60) == 0


if __name__ == "__main__":
    main()
