// The official Node client (package.json pins it) against BASE_URL, behind which the scripted upstream stands: plain, streaming, errors.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

// Through `require`, which looks into NODE_PATH: the package lies outside the repository.
const { OpenAI } = createRequire(import.meta.url)("openai");
const messages = [{ role: "user", content: "hello" }];
const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: process.env.API_KEY ?? "none", maxRetries: 0 });

const plain = await client.chat.completions.create({ model: "ok", messages });
assert.equal(plain.choices[0].message.content, "hello there");
assert.equal(plain.usage.total_tokens, 5);
console.log("ok plain");

let text = "";
let usage;
for await (const chunk of await client.chat.completions.create({ model: "ok", messages, stream: true, stream_options: { include_usage: true } })) {
  text += chunk.choices[0]?.delta.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(text, "hello there");
assert.equal(usage.total_tokens, 5);
console.log("ok streaming");

await assert.rejects(client.chat.completions.create({ model: "busy", messages }), (error) => error.status === 429 && Number(error.headers.get("retry-after")) >= 1);
await assert.rejects(client.chat.completions.create({ model: "bad", messages }), (error) => error.status === 400);
console.log("ok errors");
