// What the page holds: the index, and the pieces with the trees, which are unpacked when one is opened.

export interface Run {
  name: string;
  seed: number;
  environment: string;
  stages: string[];
  alarms: string[];
  results: Record<string, string | number | boolean | null>[];
  /** The text of each sampled token, by its id; empty where no tokenizer was at hand. */
  vocabulary: Record<string, string>;
}

/** What the list shows of a tree or an episode. Keys without a value are absent. */
export interface Summary {
  id: string;
  run: number;
  kind: "trees" | "episodes";
  name: string;
  shard: number;
  line: number;
  task: string;
  prompt?: string;
  steps?: number;
  depth?: number;
  simulations?: number;
  tokens?: number;
  imagined?: boolean;
  /** Imagined successes that failed when they were replayed. */
  wrong?: number;
  error?: string;
  /** The greatest drop of Q on the chosen path. */
  drop?: number;
  found?: boolean;
  solved?: boolean;
  return?: number;
  best?: number;
  regret?: number;
  ending?: string;
  piece: number;
  place: number;
}

/** One action: the row of pack.py. Keys without a value are absent. */
export interface Row {
  parent: number;
  text?: string;
  thought?: string;
  call?: string;
  error?: string;
  tokens?: number[];
  logprobs?: number[];
  prior?: number;
  visits?: number;
  sum?: number;
  reward?: number;
  withheld?: boolean;
  advantage?: number;
  drop?: number;
  margin?: number;
  value?: number;
  said?: string;
  images?: string[];
  flags?: number;
}

export interface Rows {
  prompt: string;
  opening: { role: string; text: string; images: string[] }[];
  value: number;
  flags: number;
  steps: Row[];
  order?: number[];
  budget: Record<string, number>;
  error: string;
}

export interface Index {
  runs: Run[];
  trees: Summary[];
  flags: string[];
}

/** The JSON in one of the page's data elements. */
export async function unpack<T>(id: string): Promise<T> {
  const element = document.getElementById(id);
  if (element === null) throw new Error(`the page lacks its part ${id}`);
  const packed = atob(element.textContent ?? "");
  const bytes = new Uint8Array(packed.length);
  for (let at = 0; at < packed.length; at++) bytes[at] = packed.charCodeAt(at);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return (await new Response(stream).json()) as T;
}

export async function loadIndex(): Promise<Index> {
  const index = await unpack<Index>("index");
  for (const each of index.trees) each.id = identify(each, index.runs.length);
  return index;
}

/** The name of a tree in links: it stays the same while the run grows. */
function identify(each: Summary, runs: number): string {
  const kind = each.kind === "trees" ? "tree" : "episode";
  const run = runs > 1 ? `${each.run + 1}.` : "";
  return `${run}${kind}.${each.name}.${each.shard}.${each.line}`;
}

let last: { piece: number; trees: Promise<Rows[]> } | null = null;

/** The trees of a piece; the last one is kept, since neighbours are often opened one after the other. */
export function loadPiece(piece: number): Promise<Rows[]> {
  if (last?.piece !== piece) last = { piece, trees: unpack<Rows[]>(`piece-${piece}`) };
  return last.trees;
}
