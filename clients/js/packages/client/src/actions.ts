/** Shorthands for the events of both profiles. */

import { Emitter } from "./emitter.js";
import { newId } from "./ids.js";
import type { Json, JsonObject } from "./wire.js";

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

/** What a client can say in one line. */
export abstract class Actions<R> extends Emitter {
  /** Submit an event to a partition; undefined is the client's only one. */
  protected abstract act(event: JsonObject, partition: string | undefined): R;

  /** A tree to push to, update, move in and delete from. */
  tree(target: string, partition?: string): Tree<R> {
    return new Tree((event) => this.act(event, partition), target);
  }

  /** Set a value at a dot path; an object merges into one that is there unless `replace`. */
  set(target: string, value: Json, { replace, partition }: { replace?: boolean; partition?: string } = {}): R {
    return this.act({ type: "set", payload: { target, value, ...(replace && { options: { replace } }) } }, partition);
  }

  /** Remove what is at a dot path. */
  unset(target: string, { partition }: { partition?: string } = {}): R {
    return this.act({ type: "unset", payload: { target } }, partition);
  }

  /** An event of the model. */
  event(schema: string, data: Json, { partition, meta }: { partition?: string; meta?: JsonObject } = {}): R {
    return this.act({ type: "event", payload: { schema, data, ...(meta && { meta }) } }, partition);
  }
}
