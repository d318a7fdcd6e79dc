// Calls by OpenAI's client for Node: node openai.mjs BASE KEY MODEL. Writes one JSON object, the results by name.
import OpenAI, { toFile } from "openai";

const [base, key, model] = process.argv.slice(2);
const given = { baseURL: base, apiKey: key, maxRetries: 0, timeout: 30_000 };
const client = new OpenAI(given);
const said = "a call wakes a model [tokens=6] [rate=200]";
const messages = [
  { role: "system", content: "be brief" },
  { role: "user", content: said },
];
const parameters = { type: "object", properties: { text: { type: "string" } } };
const tools = [{ type: "function", function: { name: "look_up", parameters } }];
const sound = new Uint8Array(76_800);
const say = (content) => [{ role: "user", content }];

async function items(stream) {
  const found = [];
  for await (const one of await stream) found.push(one);
  return found;
}

async function caught(call) {
  try {
    await call();
  } catch (error) {
    return [error.constructor.name, error.status ?? null, error.code ?? null];
  }
  return ["none"];
}

const chat = (more, on = client) => on.chat.completions.create({ model, messages, ...more });
const last = (text, more = {}, on = client) =>
  on.chat.completions.create({ model, messages: say(text), ...more });

const calls = {
  chat: () => chat({}),
  "chat stream": () => items(chat({ stream: true })),
  "chat stream with usage": () =>
    items(chat({ stream: true, stream_options: { include_usage: true } })),
  tool: () => chat({ tools }),
  "tool stream": () => items(chat({ tools, stream: true })),
  "response stream": () =>
    items(client.responses.create({ model, input: said, stream: true, instructions: "be brief" })),
  embeddings: () => client.embeddings.create({ model, input: ["one", "two words"] }),
  transcription: async () =>
    client.audio.transcriptions.create({ model, file: await toFile(sound, "call.wav") }),
  speech: async () => {
    const answer = await client.audio.speech.create({ model, voice: "a", input: "one two" });
    return Buffer.from(await answer.arrayBuffer()).toString("base64");
  },
  models: async () => (await client.models.list()).data.map((one) => one.id).sort(),
  "model with a slash": async () => (await client.models.retrieve("org/chat:small")).id,
  "wrong key": () => caught(() => chat({}, new OpenAI({ ...given, apiKey: "sk-none" }))),
  "unknown model": () => caught(() => chat({ model: "none" })),
  "bad request": () => caught(() => last("[fail=400]")),
  "too many": () => caught(() => last("[fail=429]", { stream: true })),
  failure: () => caught(() => last("[fail=500]")),
  "dies in a stream": () => caught(() => items(last("[die=3] [tokens=9] [rate=100]", { stream: true }))),
  "cut in a stream": () => caught(() => items(last("[cut=3] [tokens=9] [rate=100]", { stream: true }))),
  "dies in an answer": () => caught(() => last("[die=3] [tokens=9]")),
  timeout: () => caught(() => last("[think=20]", {}, new OpenAI({ ...given, timeout: 400 }))),
  retry: async () => {
    const patient = new OpenAI({ ...given, maxRetries: 2 });
    const text = `[fail=429] [fail_times=1] [retry_after=1] [tokens=2] ${Math.random()}`;
    return (await last(text, {}, patient)).usage.completion_tokens;
  },
  "left stream": async () => {
    const stream = await last("[tokens=500] [rate=100]", { stream: true });
    for await (const one of stream) if (one.choices[0].delta.content) break;
    return "left";
  },
};

const results = {};
for (const [name, call] of Object.entries(calls)) results[name] = await call();
process.stdout.write(JSON.stringify(results));
