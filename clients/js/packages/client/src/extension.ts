/** What adds messages of its own to a connection: presence, for example. */

import type { ClientEvent } from "./config.js";
import type { Session } from "./session.js";
import type { Tabs } from "./tabs.js";
import type { Connected, Json, JsonObject } from "./wire.js";

/** What an extension can use of its client in this tab. */
export interface ExtensionHost {
  readonly clientId: string;
  /** The tabs that share the connection: `{ type: "extension", name, data }` reaches `heard` in the others. */
  readonly tabs: Pick<Tabs, "id" | "send" | "gone">;
  /** Tell the client's listeners something. */
  readonly emit: (event: ClientEvent) => void;
  /** The client's inner parts, for the extensions of this package; they change without notice. */
  readonly session: Session;
}

/** The client asks the server for the extension by its name; one without `types` is the client's own.
 *
 * `open` and `close` are called with the client's start and stop, in every tab; `heard` gets what another tab tells.
 * The rest happens in the tab that has the connection: `connect` gives more fields for the `connect` message.
 * `connected` is called on each connection that was accepted, with the whole payload of `connected` and a way to send;
 * `message` gets each message of the types it names; `lost` says that the connection is gone.
 */
export interface Extension {
  readonly name: string;
  readonly types?: readonly string[];
  open?(host: ExtensionHost): void;
  connect?(): JsonObject;
  connected?(payload: Connected, send: (type: string, payload: Json) => void): void;
  message?(type: string, payload: JsonObject): void;
  lost?(): void;
  heard?(data: unknown): void;
  close?(): void;
}
