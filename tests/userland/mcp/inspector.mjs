// Calls tools with the functions of the MCP Inspector's command line, in one process: node inspector.mjs DIRECTORY COMMAND...
// Reads [[tool, arguments], ...] as JSON from stdin, and writes {tools: [...], results: [[tool, result or error], ...]}.
import { readFileSync } from "node:fs";

const [directory, command, ...args] = process.argv.slice(2);
const package_ = `${directory}/node_modules/@modelcontextprotocol`;
const { Client } = await import(`${package_}/sdk/dist/esm/client/index.js`);
const { callTool, connect, disconnect, listTools } = await import(`${package_}/inspector-cli/build/client/index.js`);
const { createTransport } = await import(`${package_}/inspector-cli/build/transport.js`);

const client = new Client({ name: "inspector-cli", version: "0.5.1" });
const transport = createTransport({ transportType: "stdio", command, args });
await connect(client, transport);
const { tools } = await listTools(client);
const results = [];
for (const [tool, given] of JSON.parse(readFileSync(0, "utf8"))) {
  try {
    results.push([tool, await callTool(client, tool, given)]);
  } catch (error) {
    results.push([tool, { isError: true, error: String(error) }]);
  }
}
await disconnect(transport);
console.log(JSON.stringify({ tools, results }));
