/** The client for Node: everything of the package, and a store in a file. */

export * from "./index.js";
export { createFileStore } from "./store/file.js";
