/** Listeners of a client. */

import type { ClientEvent } from "./config.js";

export type Listener<T extends ClientEvent["type"]> = (event: Extract<ClientEvent, { type: T }>) => void;

export class Emitter {
  readonly #listeners = new Set<(event: ClientEvent) => void>();

  /** Listen to one kind of event; gives a function that ends it. */
  on<T extends ClientEvent["type"]>(type: T, listener: Listener<T>): () => void {
    return this.subscribe((event) => {
      if (event.type === type) listener(event as Extract<ClientEvent, { type: T }>);
    });
  }

  /** Listen to everything; gives a function that ends it. */
  subscribe(listener: (event: ClientEvent) => void): () => void {
    const own = (event: ClientEvent) => listener(event);
    this.#listeners.add(own);
    return () => this.#listeners.delete(own);
  }

  protected emit(event: ClientEvent): void {
    for (const listener of [...this.#listeners]) {
      try {
        listener(event);
      } catch (error) {
        // A listener's fault is its own: the client goes on, and the fault is seen.
        queueMicrotask(() => {
          throw error;
        });
      }
    }
  }
}
