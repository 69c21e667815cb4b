// A client of MCP's TypeScript SDK: node calls_tools.mjs DIRECTORY URL TOKEN COMMAND; DIRECTORY has node_modules.
// Writes what our tools are called and what COMMAND prints, as JSON.
const [directory, url, token, command] = process.argv.slice(2);
const sdk = await import(`${directory}/node_modules/@modelcontextprotocol/client/dist/index.mjs`);

const client = new sdk.Client({ name: "typescript", version: "1" });
const requestInit = { headers: { authorization: `Bearer ${token}` } };
await client.connect(new sdk.StreamableHTTPClientTransport(new URL(url), { requestInit }));
const { tools } = await client.listTools();
const call = { name: "agentos_exec", arguments: { command, timeout: 0 } };
const done = await client.callTool(call, { timeout: 3_600_000 });
await client.close();
console.log(JSON.stringify([tools.map((tool) => tool.name), done.structuredContent.stdout]));
