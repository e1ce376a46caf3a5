/** Bounds of the protocol that a client keeps before it sends anything. */

/** Entries of one set of partitions, before duplicates go. */
export const ENTRIES_MAX = 64;

/** UTF-8 bytes of a partition's name after NFC. */
export const NAME_BYTES_MAX = 128;

/** UTF-8 bytes of an event's id. */
export const EVENT_ID_BYTES_MAX = 128;

/** UTF-8 bytes of a client_id. */
export const CLIENT_ID_BYTES_MAX = 256;

/** Nesting of one message; its envelope takes four levels of it. */
export const DEPTH_MAX = 64;
export const ENVELOPE_DEPTH = 4;
