// A search tree in memory. Step 0 is the root; step n is the n-th action, tried or not, with the state it led to.

import type { Row, Rows, Summary } from "./data";

export const TRIED = 1, IMAGINED = 2, REFUSED = 4, TERMINATED = 8, TRUNCATED = 16, UNKNOWN = 32, EXHAUSTED = 64;
export const CHOSEN = 128, PREFERRED = 256, REJECTED = 512, THOUGHT = 1024, SUCCESS = 2048, RESTART = 4096;

const NAMES: [number, string][] = [
  [CHOSEN, "chosen"],
  [SUCCESS, "success"],
  [IMAGINED, "imagined"],
  [REFUSED, "refused"],
  [TERMINATED, "end"],
  [TRUNCATED, "truncated"],
  [UNKNOWN, "no answer"],
  [PREFERRED, "preferred"],
  [REJECTED, "rejected"],
  [EXHAUSTED, "exhausted"],
  [RESTART, "prompt begins anew"],
];

/** The colours span at least twice this, in reward units. */
const LEAST_SPREAD = 0.1;

export class Tree {
  readonly steps: Row[];
  readonly children: number[][];
  readonly depth: number[];
  /** Of each step, how many steps stand below it. */
  readonly below: number[];
  readonly low: number;
  readonly high: number;

  constructor(
    readonly summary: Summary,
    readonly rows: Rows,
    readonly vocabulary: Record<string, string>,
  ) {
    const total = rows.steps.reduce((sum, step) => sum + (step.parent === 0 ? (step.visits ?? 0) : 0), 0);
    const root: Row = { parent: -1, flags: rows.flags | TRIED | CHOSEN, value: rows.value, visits: total };
    this.steps = [root, ...rows.steps];
    this.children = this.steps.map(() => []);
    this.depth = this.steps.map(() => 0);
    this.below = this.steps.map(() => 0);
    let low = Infinity, high = -Infinity;
    this.steps.forEach((step, at) => {
      if (at === 0) return;
      this.children[step.parent].push(at);
      this.depth[at] = this.depth[step.parent] + 1;
      const q = this.q(at);
      if (q !== undefined) {
        low = Math.min(low, q);
        high = Math.max(high, q);
      }
    });
    for (let at = this.steps.length - 1; at > 0; at--) this.below[this.steps[at].parent] += 1 + this.below[at];
    for (const each of this.children) each.sort((a, b) => this.visits(b) - this.visits(a) || +this.is(b, CHOSEN) - +this.is(a, CHOSEN) || a - b);
    // Differences too small to matter must not look like the greatest ones.
    const middle = low > high ? 0.5 : (low + high) / 2;
    this.low = Math.min(low, middle - LEAST_SPREAD);
    this.high = Math.max(high, middle + LEAST_SPREAD);
  }

  is(at: number, flag: number): boolean {
    return ((this.steps[at].flags ?? 0) & flag) !== 0;
  }

  visits(at: number): number {
    return this.steps[at].visits ?? 0;
  }

  /** Q = W / N; undefined before the first visit. */
  q(at: number): number | undefined {
    const { visits, sum } = this.steps[at];
    return visits && at ? (sum ?? 0) / visits : undefined;
  }

  siblings(at: number): number[] {
    return at === 0 ? [] : this.children[this.steps[at].parent].filter((each) => each !== at);
  }

  path(at: number): number[] {
    const steps: number[] = [];
    for (let each = at; each >= 0; each = this.steps[each].parent) steps.unshift(each);
    return steps;
  }

  /** The call in one line. */
  title(at: number, most = 120): string {
    if (at === 0) return "start";
    const step = this.steps[at];
    return cut((step.error ? step.text : step.call) || step.thought || step.text || "(nothing)", most);
  }

  marks(at: number): string[] {
    const found = NAMES.filter(([flag]) => this.is(at, flag)).map(([, name]) => name);
    return this.is(at, TRIED) ? found : ["untried", ...found];
  }

  /** Names and values of the figures that a step has. */
  figures(at: number): [string, string, string][] {
    const step = this.steps[at];
    const found: [string, string, string][] = [];
    const searched = this.summary.kind === "trees";
    if (searched) found.push(["N", String(this.visits(at)), "visits"]);
    const add = (name: string, value: number | undefined, what: string, zero = false) => {
      if (value !== undefined || zero) found.push([name, short(value ?? 0), what]);
    };
    if (at && searched) {
      add("Q", this.q(at), "mean return of the visits");
      const prior = step.prior ?? 0;
      found.push(["P", prior && prior < 0.001 ? prior.toExponential(1) : short(prior), "prior probability"]);
    }
    if (this.is(at, TRIED) && searched) add("V", step.value, "estimated return of the state", true);
    if (at && this.is(at, TRIED)) {
      if (step.withheld) found.push(["r", "withheld", "reward, which planning must not see"]);
      else add("r", step.reward, "reward", true);
    }
    add("A", step.advantage, "advantage");
    add("drop", step.drop, "what Q drops by where the step is replaced by its tried siblings");
    if (step.margin !== undefined) add("margin", step.margin, "margin of its preference pair");
    return found;
  }

  /** A step in words, for a screen reader. */
  describe(at: number): string {
    const figures = this.figures(at).map(([name, value]) => `${name} ${value}`);
    const below = this.children[at].length;
    return [this.title(at), ...figures, ...this.marks(at), below ? `${below} below` : ""].filter(Boolean).join(", ");
  }

  /** The steps to open first: the most visited ones, until about `most` are in view, and the chosen path. */
  firstOpen(most: number): Set<number> {
    const open = new Set<number>([0]);
    this.steps.forEach((_, at) => {
      if (this.is(at, CHOSEN) && this.children[at].length) open.add(at);
    });
    let shown = 1;
    for (const at of open) shown += this.children[at].length;
    const waiting = [...open].flatMap((at) => this.children[at]).filter((at) => this.children[at].length);
    waiting.sort((a, b) => this.visits(b) - this.visits(a));
    // Not a queue by priority: what is opened later is below what was opened before, and visited less.
    for (let place = 0; place < waiting.length && shown < most; place++) {
      const at = waiting[place];
      if (open.has(at)) continue;
      open.add(at);
      shown += this.children[at].length;
      waiting.push(...this.children[at].filter((each) => this.children[each].length));
    }
    return open;
  }

  /** The steps in view, in the order of the outline. */
  visible(open: ReadonlySet<number>): number[] {
    const found: number[] = [];
    const stack = [0];
    while (stack.length) {
      const at = stack.pop()!;
      found.push(at);
      if (open.has(at)) for (let place = this.children[at].length - 1; place >= 0; place--) stack.push(this.children[at][place]);
    }
    return found;
  }

  matches(words: string): number[] {
    const wanted = words.toLowerCase();
    const found: number[] = [];
    this.steps.forEach((step, at) => {
      const texts = at ? [step.call, step.text, step.thought, step.said, step.error] : this.rows.opening.map((each) => each.text);
      if (texts.some((each) => each?.toLowerCase().includes(wanted))) found.push(at);
    });
    return found;
  }
}

export function cut(text: string, most: number): string {
  const line = text.length > 4 * most ? text.slice(0, 4 * most) : text;
  const words = line.replace(/\s+/g, " ").trim();
  return words.length > most || line !== text ? `${words.slice(0, most - 1)}…` : words;
}

/** A number as people read it: with three decimals. */
export function short(value: number): string {
  return Number.isInteger(value) ? String(value) : value.toFixed(3).replace(/^-(0\.000)$/, "$1");
}
