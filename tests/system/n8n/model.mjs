// The chat model that n8n's OpenAI nodes are made of, as an agent: it asks at the endpoint and calls a tool of its own.
import { tool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import { z } from "zod";

const weather = tool(({ place }) => `rain in ${place}`, {
  name: "weather",
  description: "The weather at a place.",
  schema: z.object({ place: z.string() }),
});
const model = new ChatOpenAI({
  model: "offline",
  apiKey: process.env.OPENAI_API_KEY,
  configuration: { baseURL: process.env.OPENAI_BASE_URL },
});
const withTools = model.bindTools([weather]);

const messages = [{ role: "user", content: "What is the weather in Paris?" }];
const asked = await withTools.invoke(messages);
const result = await weather.invoke(asked.tool_calls[0]);
const answer = await withTools.invoke([...messages, asked, result]);

let streamed = "";
for await (const piece of await model.stream("hello")) streamed += piece.content;
console.log("report " + JSON.stringify({ tool: asked.tool_calls[0].name, answer: answer.content, streamed }));
