/** A store in a file, for Node: every transaction is one line at the end of it, and all rows are in memory.
 *
 * A line is its checksum and its writes as JSON. Drafts are synced to the disk before they are acknowledged (CLIENT-01).
 * A line that was cut off by a crash is dropped; a damaged line before the end is an error. The file is written anew
 * when most of it is out of date.
 */

import { open, readFile, rename, rm, type FileHandle } from "node:fs/promises";
import { dirname } from "node:path";
import { crc32 } from "./crc32.js";
import { StoreError } from "../errors.js";
import { releaseLock, takeLock } from "./lock.js";
import { MemoryBackend, MemoryTables } from "./memory.js";
import { KEYS, type Backend, type Table, type Tables } from "./types.js";

/** A file is written anew once it is this much larger than what it holds. */
const REWRITE_FACTOR = 4;
const REWRITE_BYTES_MIN = 4 * 1024 * 1024;

type Write = { table: Table; row: Tables[Table] } | { table: Table; key: string | number } | { table: Table };

/** Tables that know what was written in a transaction. */
class FileTables extends MemoryTables {
  writes: Write[] = [];

  override begin(): void {
    this.writes = [];
    super.begin();
  }

  override put<T extends Table>(table: T, row: Tables[T]): void {
    this.writes.push({ table, row });
    super.put(table, row);
  }

  override delete(table: Table, key: string | number): void {
    this.writes.push({ table, key });
    super.delete(table, key);
  }

  override clear(table: Table): void {
    this.writes.push({ table });
    super.clear(table);
  }

  /** Every row, as the writes that make it. */
  *whole(): Generator<Write> {
    for (const table of Object.keys(KEYS) as Table[]) {
      for (const row of this.rows[table].values()) yield { table, row };
    }
  }
}

export class FileBackend extends MemoryBackend {
  override readonly durable = true;
  protected override readonly tables = new FileTables();
  #file: FileHandle | null = null;
  #bytes = 0;
  #liveBytes = 0;
  #broken: unknown = null;

  constructor(readonly path: string) {
    super();
  }

  override async open(_clientId: string): Promise<void> {
    await takeLock(this.path);
    try {
      this.#bytes = await this.#replay();
      this.#file = await open(this.path, "a");
      await this.#file.truncate(this.#bytes); // drops an end that was cut off
      await this.#file.sync();
      await syncDirectory(this.path);
      this.#liveBytes = this.#bytes > REWRITE_BYTES_MIN ? this.#measure() : this.#bytes;
      await this.#rewriteWhenDue();
    } catch (error) {
      await this.#file?.close();
      await releaseLock(this.path);
      throw error;
    }
  }

  /** Perform what is in the file; gives where its last whole line ends. */
  async #replay(): Promise<number> {
    const text = await readFile(this.path, "utf8").catch((error: NodeJS.ErrnoException) => {
      if (error.code === "ENOENT") return "";
      throw error;
    });
    const lines = text.split("\n");
    const rest = lines.pop() as string;
    let bytes = 0;
    for (const [index, line] of lines.entries()) {
      const writes = read(line);
      if (writes === null) {
        if (index === lines.length - 1 && !rest) break;
        throw new StoreError(`${this.path}: line ${index + 1} is not what was written`);
      }
      this.#perform(writes);
      bytes += Buffer.byteLength(line) + 1;
    }
    return bytes;
  }

  #perform(writes: readonly Write[]): void {
    for (const write of writes) {
      if ("row" in write) this.tables.put(write.table, write.row);
      else if ("key" in write) this.tables.delete(write.table, write.key);
      else this.tables.clear(write.table);
    }
    this.tables.begin();
  }

  /** How long the file would be with its rows alone. */
  #measure(): number {
    let bytes = 0;
    for (const write of this.tables.whole()) bytes += Buffer.byteLength(lineOf([write]));
    return bytes;
  }

  /** Write the rows alone when most of the file is out of date. Nothing is lost when that fails: it is tried later. */
  async #rewriteWhenDue(): Promise<void> {
    if (this.#bytes <= REWRITE_BYTES_MIN || this.#bytes <= REWRITE_FACTOR * this.#liveBytes) return;
    const next = `${this.path}.new`;
    try {
      const file = await open(next, "w");
      try {
        for (const write of this.tables.whole()) await file.writeFile(lineOf([write]));
        await file.sync();
      } finally {
        await file.close();
      }
    } catch {
      await rm(next, { force: true });
      this.#liveBytes = this.#bytes;
      return;
    }
    await rename(next, this.path);
    await syncDirectory(this.path);
    await this.#file?.close();
    this.#file = await open(this.path, "a");
    this.#bytes = this.#liveBytes = (await this.#file.stat()).size;
  }

  protected override async commit(sync: boolean): Promise<void> {
    const { writes } = this.tables;
    if (!writes.length) return;
    const file = this.#file;
    if (file === null) throw new StoreError("the store is not open");
    if (this.#broken !== null) throw new StoreError(`the file failed before: ${String(this.#broken)}`);
    const line = lineOf(writes);
    try {
      await file.appendFile(line);
      if (sync) await file.datasync();
    } catch (error) {
      // A part of the line may be there, which would spoil the next one.
      await file.truncate(this.#bytes).catch(() => (this.#broken = error));
      throw error;
    }
    this.#bytes += Buffer.byteLength(line);
    await this.#rewriteWhenDue();
  }

  override async close(): Promise<void> {
    await super.close();
    await this.#file?.close();
    this.#file = null;
    await releaseLock(this.path);
  }
}

/** The name of a new file is durable once its directory is. */
async function syncDirectory(path: string): Promise<void> {
  const directory = await open(dirname(path), "r").catch(() => null); // not every system can
  try {
    await directory?.sync();
  } catch {
    // The same.
  } finally {
    await directory?.close();
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
