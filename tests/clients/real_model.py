"""The official Python client, through a gateway (BASE_URL), against a real model server: plain, streaming, usage, the list of models."""

import os

import openai

client = openai.OpenAI(base_url=os.environ["BASE_URL"], api_key=os.environ["API_KEY"], max_retries=0, timeout=240)
messages = [{"role": "user", "content": "Say hello in one short sentence."}]

assert "small" in [model.id for model in client.models.list()]
print("ok models")

raw = client.chat.completions.with_raw_response.create(model="small", messages=messages, max_tokens=24)
answer = raw.parse()
assert answer.choices[0].message.content.strip(), answer
assert answer.usage.completion_tokens > 0 and answer.usage.prompt_tokens > 0, answer
assert raw.headers["x-watertight-agent"] == "small" and raw.headers["x-watertight-attempts"] == "1", raw.headers
print("ok plain,", answer.usage.completion_tokens, "tokens")

for options, usages in [({}, 0), ({"stream_options": {"include_usage": True}}, 1)]:
    chunks = list(client.chat.completions.create(model="small", messages=messages, max_tokens=24, stream=True, **options))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text.strip() and any(choice.finish_reason for chunk in chunks for choice in chunk.choices), chunks
    assert sum(chunk.usage is not None for chunk in chunks) == usages, chunks
print("ok streaming,", len(chunks), "chunks")
