// What a program does with the official client of the API. Prints what it saw as one JSON object.
const OpenAI = require(process.env.OPENAI_PACKAGE);

const client = (more) => new OpenAI({ baseURL: process.env.BASE_URL, apiKey: "sk-acme", ...more });
const ask = { model: "m", max_tokens: 20, messages: [{ role: "user", content: "abcd" }] };

const acts = {
  async plain() {
    const answer = await client().chat.completions.create(ask);
    return { text: answer.choices[0].message.content, total: answer.usage.total_tokens };
  },
  async stream() {
    const chunks = [];
    for await (const chunk of await client().chat.completions.create({ ...ask, stream: true })) chunks.push(chunk);
    return {
      text: chunks.map((chunk) => chunk.choices[0].delta.content ?? "").join(""),
      usage: chunks.map((chunk) => chunk.usage != null),
    };
  },
  async limited() {
    try {
      await client({ maxRetries: 0 }).chat.completions.create(ask);
    } catch (error) {
      const { code, type, message } = error;
      const is_limit = error instanceof OpenAI.RateLimitError;
      return { is_limit, code, type, message, retry_after_ms: error.headers.get("retry-after-ms") };
    }
    return {};
  },
  async retried() {
    const caller = client({ maxRetries: 1 });
    const texts = [];
    for (let nth = 0; nth < 2; nth++) {
      texts.push((await caller.chat.completions.create(ask)).choices[0].message.content);
    }
    return { texts };
  },
};

acts[process.argv[2]]().then((seen) => console.log(JSON.stringify(seen)));
