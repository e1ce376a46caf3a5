/** Tree actions in one line. */

import { newId } from "../ids.js";
import type { JsonObject } from "../wire.js";

export type TreePosition = "first" | "last" | { after: string } | { before: string };

export interface Place {
  readonly parent?: string;
  readonly position?: TreePosition;
}

type Submit<R> = (event: JsonObject) => R;

/** One tree of a partition, as in `client.tree("explorer").push({ title: "Notes" })`. */
export class Tree<R> {
  constructor(
    readonly submit: Submit<R>,
    readonly target: string,
  ) {}

  /** Add an item; without an `id` in its value it gets a new one. */
  push(value: JsonObject, place: Place = {}): R {
    return this.#act("treePush", { ...place }, { id: newId(), ...value });
  }

  /** Merge into an item's data, or replace it. */
  update(id: string, value: JsonObject, options: { replace?: boolean } = {}): R {
    return this.#act("treeUpdate", { id, ...options }, value);
  }

  /** Move an item with all below it. */
  move(id: string, place: Place = {}): R {
    return this.#act("treeMove", { id, ...place });
  }

  /** Remove an item with all below it. */
  delete(id: string): R {
    return this.#act("treeDelete", { id });
  }

  #act(type: string, options: { [key: string]: unknown }, value?: JsonObject): R {
    const payload: JsonObject = { target: this.target, ...(value && { value }) };
    if (Object.keys(options).length) payload["options"] = options as JsonObject;
    return this.submit({ type, payload });
  }
}
