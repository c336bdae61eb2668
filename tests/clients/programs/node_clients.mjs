// One Node client in its own environment: `node node_clients.mjs KEY URL` prints what it made of the
// answers, a JSON object with an entry for each turn.
import OpenAI from "openai";
import { generateText, jsonSchema, streamText, tool } from "ai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";

const MODEL = "baton-tiny";
const ASK = "Where does the river rise?";
const AGAIN = "And where does it end?";
const SYSTEM = "Answer in few words.";
const CITY = {
  type: "object",
  properties: { city: { type: "string", enum: ["Rome", "Oslo"] } },
  required: ["city"],
  additionalProperties: false,
};
const user = (content) => ({ role: "user", content });

function openai_node(url) {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
  const first = [{ role: "system", content: SYSTEM }, user(ASK)];
  const about = { model: MODEL, max_tokens: 12, temperature: 0, messages: first };
  const tools = [{ type: "function", function: { name: "weather", parameters: CITY } }];
  const forced = { type: "function", function: { name: "weather" } };
  const said = async (fields) =>
    (await client.chat.completions.create({ ...about, ...fields })).choices[0].message;
  const called = () => said({ tools, tool_choice: forced, max_tokens: 100 });
  return {
    "first turn": async () => (await said()).content,
    "second turn": async () =>
      (await said({ messages: [...first, await said(), user(AGAIN)] })).content,
    stream: async () => {
      let text = "";
      for await (const chunk of await client.chat.completions.create({ ...about, stream: true }))
        text += chunk.choices[0]?.delta?.content ?? "";
      return text;
    },
    "tool call": async () => (await called()).tool_calls[0].function.arguments,
    "tool result": async () => {
      const call = await called();
      const result = { role: "tool", tool_call_id: call.tool_calls[0].id, content: "sunny" };
      return (await said({ messages: [...first, call, result], tools })).content;
    },
  };
}

function vercel(url) {
  const provider = createOpenAICompatible({ name: "baton", baseURL: `${url}/v1`, apiKey: "none" });
  const about = { model: provider(MODEL), temperature: 0, maxOutputTokens: 12, maxRetries: 0 };
  const weather = tool({ inputSchema: jsonSchema(CITY) });
  const first = [{ role: "system", content: SYSTEM }, user(ASK)];
  const said = (fields) => generateText({ ...about, messages: first, ...fields });
  const called = () =>
    said({
      tools: { weather },
      toolChoice: { type: "tool", toolName: "weather" },
      maxOutputTokens: 100,
    });
  return {
    "first turn": async () => (await said()).text,
    "second turn": async () =>
      (await said({ messages: [...first, ...(await said()).response.messages, user(AGAIN)] })).text,
    stream: async () => {
      let text = "";
      for await (const part of streamText({ ...about, messages: first }).textStream) text += part;
      return text;
    },
    "tool call": async () => (await called()).toolCalls[0].input,
    "tool result": async () => {
      const call = await called();
      const output = { type: "text", value: "sunny" };
      const { toolCallId, toolName } = call.toolCalls[0];
      const result = {
        role: "tool",
        content: [{ type: "tool-result", toolCallId, toolName, output }],
      };
      return (await said({ messages: [...first, ...call.response.messages, result] })).text;
    },
  };
}

const [key, url] = process.argv.slice(2);
const outcomes = {};
for (const [name, turn] of Object.entries({ openai_node, vercel }[key](url))) {
  try {
    outcomes[name] = await turn();
  } catch (error) {
    outcomes[name] = { error: error.name, status: error.status ?? error.statusCode ?? null };
    console.error(`${name}: ${error}`.slice(0, 2000));
  }
}
console.log("\n" + JSON.stringify(outcomes));
process.exit(0);
