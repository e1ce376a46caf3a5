// Written by `python -m tests.js.wire_types` from the message definitions in Python. Do not edit.

/** Any JSON value. */
export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

/** A JSON object. */
export type JsonObject = { [key: string]: Json };

/** The protocol version of every message. */
export const VERSION = "1.0";

// Why a server closes a WebSocket.
export const CLOSE_NORMAL = 1000;
export const CLOSE_GOING_AWAY = 1001;
export const CLOSE_PROTOCOL_ERROR = 1002;
export const CLOSE_INVALID_TEXT = 1007;
export const CLOSE_TOO_BIG = 1009;
export const CLOSE_SERVER_ERROR = 1011;
export const CLOSE_AUTH_FAILED = 4001;
export const CLOSE_UNSUPPORTED = 4002;
export const CLOSE_REPLACED = 4003;
export const CLOSE_TIMEOUT = 4004;
export const CLOSE_SLOW_CONSUMER = 4005;
export const CLOSE_OVERLOAD = 4006;

/** The codes of an `error`. */
export type ErrorCode = "bad_request" | "validation_failed" | "forbidden" | "rate_limited" | "auth_failed" | "protocol_version_unsupported" | "profile_unsupported" | "server_error";

/** One reason why an item is refused. */
export interface FieldError {
  field: string;
  message: string;
}

/** What was negotiated. A server of the first draft sends none of it: the profile is then the requested one. */
export interface Capabilities {
  profile: string | null;
  tree_policy: string | null;
  ordered_delivery: boolean;
  snapshots: Json;
  extensions: string[];
}

/** Bounds the server advertises; the defaults are the protocol's, None is unknown. */
export interface Limits {
  max_batch_size: number;
  sync_limit_min: number;
  sync_limit_max: number;
  max_message_bytes: number | null;
  max_in_flight_drafts: number | null;
  max_subscriptions: number;
  max_presence_bytes: number | null;
  presence_ttl_ms: number | null;
}

/** The outcome of one submitted item. */
export interface SubmitResultItem {
  id: string;
  status: string;
  committed_id: number | null;
  reason: string | null;
  errors: Json;
  status_updated_at: number;
}

/** One entry of `sync_response.snapshots`: the state of a partition up to `committed_id`. */
export interface ServerSnapshot {
  partition: string;
  committed_id: number;
  state: Json;
  model_version: number | null;
  model_digest: string | null;
}

/** The handshake is accepted. */
export interface Connected {
  client_id: string;
  capabilities: Capabilities | null;
  limits: Limits | null;
  model_version: number | null;
  model_digest: string | null;
  log_id: string | null;
  log_epoch: number | null;
  user_id: string | null;
}

/** The one shape of a committed event (BCAST-05), with its author where the client asked for it (EXT-03). */
export interface CommittedEvent {
  id: string;
  committed_id: number;
  partitions: string[];
  event: Json;
  client_id: string;
  status_updated_at: number;
  user_id: string | null;
}

/** One page. `snapshots` stays raw: it is decoded only where snapshots were requested. */
export interface SyncResponse {
  events: CommittedEvent[];
  next_since_committed_id: number;
  sync_to_committed_id: number;
  has_more: boolean;
  model_version: number | null;
  model_digest: string | null;
  log_id: string | null;
  log_epoch: number | null;
  snapshots: Json;
}

/** `submit_events_result`. */
export interface SubmitResult {
  results: SubmitResultItem[];
}

/** The server uses another model from now on. */
export interface VersionChanged {
  new_model_version: number | null;
}

/** The answer to a heartbeat. */
export type HeartbeatAck = Record<string, never>;

/** `error`. The content of `details` depends on the code. */
export interface ErrorMessage {
  code: string;
  message: string;
  details: Json;
  retry_after_ms: number | null;
}

/** One client that is in a partition. */
export interface PresenceEntry {
  client_id: string;
  value: Json;
  user_id: string | null;
}

/** `presence_update`: who is there, or with `complete: false` who says something else, and who is gone. */
export interface PresenceUpdate {
  partition: string;
  present: PresenceEntry[];
  gone: string[];
  complete: boolean;
}

/** One submitted event. `partition` is the legacy field of PART-05. */
export interface Item {
  id: string;
  event: Json;
  partitions?: string[];
  partition?: string;
  client_id?: string | null;
}

/** Open the session: who speaks, with which proof, in which profiles. */
export interface Connect {
  token: string;
  client_id: string;
  last_committed_id?: number | null;
  supported_profiles?: string[];
  required_profile?: string;
  required_tree_policy?: string;
  snapshots?: boolean | null;
  extensions?: string[] | null;
}

/** Still here. */
export interface Heartbeat {
  client_id?: string | null;
}

/** Leaving on purpose. */
export interface Disconnect {
  client_id?: string | null;
  reason?: string | null;
}

/** One event, answered `event_committed` or `event_rejected` (SUBMIT-06). */
export interface SubmitEvent {
  id: string;
  event: Json;
  partitions?: string[];
  partition?: string;
  client_id?: string | null;
}

/** A batch, answered by one `submit_events_result` (SUBMIT-04). */
export interface SubmitEvents {
  events: Item[];
  client_id?: string | null;
}

/** Ask for history, and optionally subscribe to partitions. */
export interface Sync {
  since_committed_id: number;
  partitions?: string[];
  partition?: string;
  subscription_partitions?: string[];
  limit?: number | null;
  client_id?: string | null;
  snapshots?: boolean | null;
}

/** What a client sends, by type. */
export interface ClientMessages {
  connect: Connect;
  heartbeat: Heartbeat;
  disconnect: Disconnect;
  submit_event: SubmitEvent;
  submit_events: SubmitEvents;
  sync: Sync;
}

/** The fields of what a server sends: `name:type`, and `=default` where it may be left out. */
export const SHAPES = {
  Capabilities: "profile:s? tree_policy:s? ordered_delivery:b=false snapshots:*? extensions:[]s=[]",
  Limits: "max_batch_size:i=100 sync_limit_min:i=50 sync_limit_max:i=1000 max_message_bytes:i? max_in_flight_drafts:i? max_subscriptions:i=64 max_presence_bytes:i? presence_ttl_ms:n?",
  SubmitResultItem: "id:s status:s committed_id:i? reason:s? errors:*? status_updated_at:n=0",
  ServerSnapshot: "partition:s committed_id:i state:* model_version:i? model_digest:s?",
  connected: "client_id:s='' capabilities:Capabilities? limits:Limits? model_version:i? model_digest:s? log_id:s? log_epoch:i? user_id:s?",
  event_broadcast: "id:s committed_id:i partitions:[]s event:* client_id:s='' status_updated_at:n=0 user_id:s?",
  sync_response: "events:[]event_broadcast next_since_committed_id:i sync_to_committed_id:i has_more:b model_version:i? model_digest:s? log_id:s? log_epoch:i? snapshots:*?",
  submit_events_result: "results:[]SubmitResultItem",
  version_changed: "new_model_version:i?",
  heartbeat_ack: "",
  error: "code:s message:s='' details:*? retry_after_ms:n?",
} as const;
