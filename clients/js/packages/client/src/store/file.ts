/** A store in a file, for Node: every transaction is one line at the end of it, and all rows are in memory.
 *
 * A line is its checksum and its writes as JSON. Drafts are synced to the disk before they are acknowledged (CLIENT-01).
 * A line that was cut off by a crash is dropped; a damaged line before the end is an error. The file is written anew
 * when most of it is out of date.
 */

import { open, readFile, rename, type FileHandle } from "node:fs/promises";
import { crc32 } from "./crc32.js";
import { StoreError } from "../errors.js";
import { releaseLock, takeLock } from "./lock.js";
import { MemoryBackend, type Write } from "./memory.js";
import type { Backend } from "./types.js";

/** A file is written anew once it is this much larger than what it holds. */
const REWRITE_FACTOR = 4;
const REWRITE_BYTES_MIN = 4 * 1024 * 1024;

export class FileBackend extends MemoryBackend {
  override readonly durable = true;
  #file: FileHandle | null = null;
  #bytes = 0;
  #liveBytes = 0;

  constructor(readonly path: string) {
    super();
  }

  override async open(_clientId: string): Promise<void> {
    await takeLock(this.path);
    try {
      await this.#replay();
      this.#file = await open(this.path, "a");
      await this.#rewrite();
    } catch (error) {
      await releaseLock(this.path);
      throw error;
    }
  }

  async #replay(): Promise<void> {
    const text = await readFile(this.path, "utf8").catch((error: NodeJS.ErrnoException) => {
      if (error.code === "ENOENT") return "";
      throw error;
    });
    const lines = text.split("\n");
    const rest = lines.pop() as string;
    for (const [index, line] of lines.entries()) {
      const writes = read(line);
      if (writes === null) {
        if (index === lines.length - 1 && !rest) break;
        throw new StoreError(`${this.path}: line ${index + 1} is not what was written`);
      }
      this.#perform(writes);
    }
  }

  #perform(writes: readonly Write[]): void {
    for (const write of writes) {
      if ("row" in write) this.tables.put(write.table, write.row);
      else if ("key" in write) this.tables.delete(write.table, write.key);
      else this.tables.clear(write.table);
    }
    this.tables.begin();
  }

  /** Write the rows alone, beside the file, and put that in its place: a cut-off end goes with it. */
  async #rewrite(): Promise<void> {
    const next = `${this.path}.new`;
    const file = await open(next, "w");
    let bytes = 0;
    for (const write of this.tables.rows()) {
      const line = lineOf([write]);
      bytes += Buffer.byteLength(line);
      await file.writeFile(line);
    }
    await file.sync();
    await file.close();
    await rename(next, this.path);
    await this.#file?.close();
    this.#file = await open(this.path, "a");
    this.#bytes = this.#liveBytes = bytes;
  }

  protected override async commit(writes: readonly Write[], sync: boolean): Promise<void> {
    if (!writes.length) return;
    const file = this.#file;
    if (file === null) throw new StoreError("the store is not open");
    const line = lineOf(writes);
    await file.appendFile(line);
    if (sync) await file.datasync();
    this.#bytes += Buffer.byteLength(line);
    if (this.#bytes > REWRITE_BYTES_MIN && this.#bytes > REWRITE_FACTOR * this.#liveBytes) await this.#rewrite();
  }

  override async close(): Promise<void> {
    await super.close();
    await this.#file?.close();
    this.#file = null;
    await releaseLock(this.path);
  }
}

function lineOf(writes: readonly Write[]): string {
  const text = JSON.stringify(writes);
  return `${crc32(text).toString(16).padStart(8, "0")}${text}\n`;
}

function read(line: string): Write[] | null {
  const text = line.slice(8);
  return crc32(text).toString(16).padStart(8, "0") === line.slice(0, 8) ? (JSON.parse(text) as Write[]) : null;
}

/** A store in a file of its own. */
export const createFileStore = (path: string): Backend => new FileBackend(path);
