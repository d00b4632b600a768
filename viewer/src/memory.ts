// What the page remembers while its tab is open.

/** Keep a value until the tab is closed; undefined forgets it. */
export function remember(name: string, value: unknown): void {
  try {
    if (value === undefined) sessionStorage.removeItem(name);
    else sessionStorage.setItem(name, JSON.stringify(value));
  } catch {
    // No storage, or a full one: the page then begins anew when it is loaded again.
  }
}

export function recall<T>(name: string): T | undefined {
  try {
    const kept = sessionStorage.getItem(name);
    return kept === null ? undefined : (JSON.parse(kept) as T);
  } catch {
    return undefined;
  }
}
