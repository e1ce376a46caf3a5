/** The client for Node: everything of the package, and stores in a file and in memory. */

export * from "./index.js";
export { createFileStore } from "./store/file.js";
export { createMemoryStore } from "./store/memory.js";
