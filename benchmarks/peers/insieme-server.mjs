// The JavaScript reference as its own packages offer it: SQLite with synchronous=FULL, WebSockets by `ws`.
import { createHmac, timingSafeEqual } from "node:crypto";
import { join } from "node:path";
import Database from "better-sqlite3";
import { createSqliteSyncStore, createSyncServer, createWsServerRuntime } from "insieme/server";
import { WebSocketServer } from "ws";

const secret = process.env.BENCH_SECRET;
const db = new Database(join(process.argv[2], "insieme.db"));
const store = createSqliteSyncStore(db);
await store.init();
if (db.pragma("synchronous", { simple: true }) !== 2) throw new Error("SQLite does not sync on each commit");

const verifyToken = async (token) => {
  const [head, claims, signature] = token.split(".");
  const expected = createHmac("sha256", secret).update(`${head}.${claims}`).digest();
  const given = Buffer.from(signature, "base64url");
  if (given.length !== expected.length || !timingSafeEqual(given, expected)) throw new Error("bad signature");
  const parsed = JSON.parse(Buffer.from(claims, "base64url").toString());
  if (parsed.exp < Date.now() / 1000) throw new Error("expired");
  return { clientId: parsed.client_id, claims: parsed };
};

const syncServer = createSyncServer({
  auth: { verifyToken },
  authz: { authorizeProject: async () => true },
  validation: { validate: async () => {} },
  store,
  clock: { now: () => Date.now() },
  limits: { maxInboundMessagesPerWindow: 1_000_000_000 },
});
const wsServer = new WebSocketServer({ host: "127.0.0.1", port: 0 });
createWsServerRuntime({ wsServer, syncServer });
wsServer.on("listening", () => console.log(wsServer.address().port));
process.on("SIGTERM", () => process.exit(0));
