/** Undoing changes of a state: recorded from the first `mark` until `settle`, and not otherwise. */

export class Journal {
  #undos: (() => void)[] | null = null;

  mark(): number {
    this.#undos ??= [];
    return this.#undos.length;
  }

  note(undo: () => void): void {
    this.#undos?.push(undo);
  }

  /** Undo everything since `mark`, which was not settled since. */
  rollback(mark: number): void {
    const undos = this.#undos ?? [];
    if (mark > undos.length) throw new RangeError("this mark is void: it was settled or rolled back");
    while (undos.length > mark) (undos.pop() as () => void)();
  }

  /** Forget how to undo; marks taken before are void. */
  settle(): void {
    this.#undos = null;
  }
}
