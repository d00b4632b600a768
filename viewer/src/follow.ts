// A page that is written again while its run goes on loads itself again, and shows the same place as before.

const EVERY = 5_000;
/** Nothing is loaded again while somebody is at work here. */
const STILL = 4_000;

/** Load the page again every few seconds, until the function returned is called. */
export function follow(): () => void {
  let touched = performance.now() - STILL;
  const touch = () => {
    touched = performance.now();
  };
  const kinds = ["pointerdown", "pointermove", "keydown", "wheel"] as const;
  for (const kind of kinds) addEventListener(kind, touch, { passive: true });
  const timer = setInterval(() => {
    if (!document.hidden && performance.now() - touched > STILL) location.reload();
  }, EVERY);
  return () => {
    clearInterval(timer);
    for (const kind of kinds) removeEventListener(kind, touch);
  };
}

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
