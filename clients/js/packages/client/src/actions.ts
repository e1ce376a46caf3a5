/** Shorthands for the events of both profiles. */

import { Emitter } from "./emitter.js";
import type { Tree } from "./model/tree-shorthands.js";
import type { Json, JsonObject } from "./wire.js";

/** What a client can say in one line. */
export abstract class Actions<R> extends Emitter {
  /** Submit an event to a partition; undefined is the client's only one. */
  protected abstract act(event: JsonObject, partition: string | undefined): R;

  /** A tree to push to, update, move in and delete from; of a client with `treeModel()`. */
  tree(target: string, partition?: string): Tree<R> {
    return this.newTree((event) => this.act(event, partition), target);
  }

  protected abstract newTree(submit: (event: JsonObject) => R, target: string): Tree<R>;

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
