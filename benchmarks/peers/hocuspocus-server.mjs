// Hocuspocus without a store: documents live in memory.
import { Server } from "@hocuspocus/server";

const server = new Server({ address: "127.0.0.1", port: 0, quiet: true, stopOnSignals: false });
await server.listen();
console.log(server.address.port);
process.on("SIGTERM", () => process.exit(0));
