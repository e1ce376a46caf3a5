/** Undoing changes of a state: recorded from the first `mark` until `settle`, and not otherwise. */

/** How a change is undone; where it is known, the object and the key that changed, or the list. */
type Change = readonly [undo: () => void, container?: object, key?: string];

export class Journal {
  #changes: Change[] | null = null;

  mark(): number {
    this.#changes ??= [];
    return this.#changes.length;
  }

  note(...change: Change): void {
    this.#changes?.push(change);
  }

  /** The changes since `mark`. */
  since(mark: number): readonly Change[] {
    return this.#changes?.slice(mark) ?? [];
  }

  /** Undo everything since `mark`, which was not settled since. */
  rollback(mark: number): void {
    const changes = this.#changes ?? [];
    if (mark > changes.length) throw new RangeError("this mark is void: it was settled or rolled back");
    while (changes.length > mark) (changes.pop() as Change)[0]();
  }

  /** Forget how to undo; marks taken before are void. */
  settle(): void {
    this.#changes = null;
  }
}
