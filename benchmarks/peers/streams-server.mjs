// Durable Streams with files, which it syncs on each append.
import { DurableStreamTestServer } from "@durable-streams/server";

// Stdout has the port and nothing else.
const print = console.log;
console.log = console.info = console.error;

const server = new DurableStreamTestServer({ host: "127.0.0.1", port: 0, dataDir: process.argv[2] });
const url = await server.start();
print(new URL(url).port);
process.on("SIGTERM", () => process.exit(0));
