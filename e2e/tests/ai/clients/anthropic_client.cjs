// What a program does with the official client of the Messages API. Prints what it saw as one JSON object.
const Anthropic = require(process.env.ANTHROPIC_PACKAGE);

const client = (more) => new Anthropic({ baseURL: process.env.BASE_URL, apiKey: "sk-acme", ...more });
const ask = { model: "m", max_tokens: 20, messages: [{ role: "user", content: "abcd" }] };
const tool = { name: "weather", input_schema: { type: "object", properties: { city: { type: "string" } } } };
const total = (usage) =>
  usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens + usage.output_tokens;

const acts = {
  async plain() {
    const answer = await client().messages.create(ask);
    return { text: answer.content[0].text, total: total(answer.usage) };
  },
  async stream() {
    let text = "";
    const events = client().messages.stream(ask).on("text", (piece) => (text += piece));
    const answer = await events.finalMessage();
    return { text, output: answer.usage.output_tokens };
  },
  async tools() {
    const answer = await client().messages.create({ ...ask, tools: [tool] });
    const streamed = await client().messages.stream({ ...ask, tools: [tool] }).finalMessage();
    return { calls: [answer, streamed].map((it) => [it.content[0].name, it.content[0].input]) };
  },
  async others() {
    const caller = client();
    const counted = await caller.messages.countTokens({ model: "m", messages: ask.messages });
    const models = [];
    for await (const model of caller.models.list()) models.push(model.id);
    return { counted: counted.input_tokens, models };
  },
  async limited() {
    try {
      await client({ maxRetries: 0 }).messages.create(ask);
    } catch (error) {
      const is_limit = error instanceof Anthropic.RateLimitError;
      return { is_limit, type: error.error.error.type, retry_after: error.headers.get("retry-after") };
    }
    return {};
  },
  async retried() {
    const caller = client({ maxRetries: 1 });
    const texts = [];
    for (let nth = 0; nth < 2; nth++) texts.push((await caller.messages.create(ask)).content[0].text);
    return { texts };
  },
  async errors() {
    const seen = [];
    for (const [more, apiKey] of [[{ model: "none" }, "sk-acme"], [{}, "sk-unknown"]]) {
      try {
        await client({ apiKey, maxRetries: 0 }).messages.create({ ...ask, ...more });
      } catch (error) {
        seen.push([error.constructor.name, error.error.error.type]);
      }
    }
    return { errors: seen };
  },
};

acts[process.argv[2]]().then((seen) => console.log(JSON.stringify(seen)));
