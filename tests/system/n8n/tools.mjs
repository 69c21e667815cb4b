// The client of n8n's MCP nodes: node tools.mjs URL TOKEN. Lists the tools and calls one.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

const [url, token] = process.argv.slice(2);
const client = new Client({ name: "n8n", version: "1" });
const headers = { Authorization: `Bearer ${token}` };
await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }));
const { tools } = await client.listTools();
const done = await client.callTool({ name: "agentos_exec", arguments: { command: "echo hello from a jail" } });
const denied = await client.callTool({ name: "agentos_read", arguments: { path: "/etc/shadow" } });
await client.close();
console.log(JSON.stringify({ tools: tools.map((one) => one.name), done, denied }));
