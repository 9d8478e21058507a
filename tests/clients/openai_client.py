"""The official Python client (requirements.txt pins it) against BASE_URL, behind which the scripted upstream (UPSTREAM_URL) stands.

With GATEWAY=1 the rules of the gateway are asked for as well: its envelope, its code of a cut stream, and that layers do not multiply
(requests that reach the upstream are counted). Without it, BASE_URL = UPSTREAM_URL tries these tests themselves.
"""

import json
import os
import time
import urllib.request

import openai

BASE_URL, UPSTREAM = os.environ["BASE_URL"], os.environ["UPSTREAM_URL"]
GATEWAY = os.environ.get("GATEWAY") == "1"
HELLO = [{"role": "user", "content": "hello"}]
TOOL = {
    "type": "function",
    "function": {"name": "weather", "strict": True, "parameters": {"type": "object", "properties": {"도시": {"type": "string"}}}},
}


def client(**options):
    return openai.OpenAI(base_url=BASE_URL, api_key=os.environ.get("API_KEY", "none"), **{"max_retries": 0, **options})


def count(model):
    with urllib.request.urlopen(UPSTREAM.removesuffix("/v1") + f"/count/{model}") as answer:
        return json.load(answer)["count"]


def refused(model, kind, **options):
    before = count(model)
    try:
        client(**options).chat.completions.create(model=model, messages=HELLO)
    except kind as error:
        return error, count(model) - before
    raise AssertionError(f"{model} answered")


def plain_and_usage():
    answer = client().chat.completions.create(model="ok", messages=HELLO)
    assert answer.choices[0].message.content == "hello there", answer
    assert answer.choices[0].finish_reason == "stop" and answer.usage.total_tokens == 5, answer


def streaming_and_usage():
    for options, usages in [({}, 0), ({"stream_options": {"include_usage": True}}, 1)]:
        chunks = list(client().chat.completions.create(model="ok", messages=HELLO, stream=True, **options))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == "hello there", chunks
        assert sum(chunk.usage is not None for chunk in chunks) == usages, chunks


def tools_untouched():
    answer = client().chat.completions.create(model="tools", messages=HELLO, tools=[TOOL])
    call = answer.choices[0].message.tool_calls[0]
    assert call.function.name == "weather" and json.loads(call.function.arguments) == {"heard": [TOOL]}, call
    assert answer.choices[0].finish_reason == "tool_calls"
    chunks = list(client().chat.completions.create(model="tools", messages=HELLO, tools=[TOOL], stream=True))
    parts = [part for chunk in chunks for choice in chunk.choices for part in choice.delta.tool_calls or []]
    assert json.loads("".join(part.function.arguments for part in parts)) == {"heard": [TOOL]}, parts


def errors():
    error, reached = refused("bad", openai.BadRequestError)
    assert error.status_code == 400 and reached == 1 and "bad, as asked" in error.message, (error, reached)
    if GATEWAY:
        assert error.body["watertight"]["error_code"] == "AGENT_ERROR", error.body
    error, _ = refused("broken", openai.InternalServerError)
    assert error.status_code >= 500, error


def busy_with_retry_after():
    error, _ = refused("busy", openai.RateLimitError)
    assert 1 <= int(error.response.headers["retry-after"]) <= 7, error.response.headers
    if GATEWAY:
        # A wait of an hour is a spent quota: no client shall loop on it.
        error, reached = refused("far", openai.APIStatusError, max_retries=2)
        assert (error.status_code, reached) == (402, 1), (error, reached)
        assert error.response.headers["x-should-retry"] == "false", error.response.headers


def retries_are_told_when_not_to():
    # The client would try three times.
    _, reached = refused("final", openai.APIStatusError, max_retries=2)
    assert reached == 1, f"{reached} requests reached the upstream"
    if GATEWAY:
        error, reached = refused("broken", openai.APIStatusError, max_retries=2)
        assert error.response.headers["x-should-retry"] == "false", error.response.headers
        assert reached <= 3, f"{reached} requests reached the upstream: layers multiply"


def layers_do_not_multiply():
    """The gateway tries `always` four times; a client that would try four times more is told not to."""
    if not GATEWAY:
        return
    error, reached = refused("always", openai.RateLimitError, max_retries=3)
    assert reached == 4, f"{reached} requests reached the upstream instead of 4"
    headers = error.response.headers
    assert (headers["x-should-retry"], headers["x-watertight-attempts"]) == ("false", "4"), headers
    assert error.body["watertight"]["details"]["attempts"] == 4, error.body


def timeouts():
    began = time.monotonic()
    refused("slow", openai.APITimeoutError, timeout=1.0)
    assert time.monotonic() - began < 5


def a_cut_stream_does_not_end_well():
    try:
        chunks = list(client().chat.completions.create(model="cut", messages=HELLO, stream=True))
    except openai.APIError:
        return
    finished = any(choice.finish_reason for chunk in chunks for choice in chunk.choices)
    assert not GATEWAY and not finished, chunks


if __name__ == "__main__":
    for test in [
        plain_and_usage,
        streaming_and_usage,
        tools_untouched,
        errors,
        busy_with_retry_after,
        retries_are_told_when_not_to,
        layers_do_not_multiply,
        timeouts,
        a_cut_stream_does_not_end_well,
    ]:
        test()
        print("ok", test.__name__, flush=True)
