// All trees and episodes of all runs, searched, filtered and sorted, without loading any of them.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { loadPiece, type Index, type Rows, type Summary } from "./data";
import { address } from "./route";
import { cut, short } from "./tree";
import { Foreign } from "./text";
import { Virtual } from "./virtual";

const HEIGHT = 46;

export interface Choice {
  words: string;
  /** Texts inside all trees are searched too. */
  deep: boolean;
  group: string;
  filters: string[];
  order: string;
}

export const NO_CHOICE: Choice = { words: "", deep: false, group: "", filters: [], order: "" };

const FILTERS: [string, string, (each: Summary) => boolean][] = [
  ["failed", "the episode, or the most visited path of a training tree, is no success", (each) => each.solved === false],
  ["solved", "the episode, or the most visited path of a training tree, is a success", (each) => each.solved === true],
  ["found, not taken", "search found a success and the chosen path is none", (each) => !!each.found && !each.solved],
  ["imagined and wrong", "a success of the world model failed when it was replayed", (each) => !!each.wrong],
  ["high regret", "the best path returned at least 0.5 more than the chosen one", (each) => (each.regret ?? 0) >= 0.5],
  ["critical step", "a step of the chosen path is worth at least 0.5 more than its siblings", (each) => (each.drop ?? 0) >= 0.5],
  ["broke off", "an error ended the search or the episode", (each) => !!each.error],
];

const ORDERS: [string, (each: Summary) => number][] = [
  ["regret", (each) => each.regret ?? -1],
  ["drop", (each) => each.drop ?? -1],
  ["steps", (each) => each.steps ?? 0],
  ["depth", (each) => each.depth ?? 0],
  ["simulations", (each) => each.simulations ?? 0],
  ["tokens", (each) => each.tokens ?? 0],
];

export function groupOf(each: Summary): string {
  return `${each.run} ${each.kind} ${each.name}`;
}

/** Chosen trees in the order in which they are listed. */
export function choose(index: Index, choice: Choice, inside: ReadonlySet<Summary> | null): Summary[] {
  const words = choice.words.toLowerCase().trim();
  const tests = FILTERS.filter(([name]) => choice.filters.includes(name));
  const found = index.trees.filter(
    (each) =>
      (!choice.group || groupOf(each) === choice.group) &&
      tests.every(([, , test]) => test(each)) &&
      (!words ||
        (inside ? inside.has(each) : `${each.task} ${each.prompt ?? ""} ${each.name}`.toLowerCase().includes(words))),
  );
  const order = ORDERS.find(([name]) => name === choice.order);
  return order ? found.toSorted((a, b) => order[1](b) - order[1](a)) : found;
}

interface Props {
  index: Index;
  choice: Choice;
  change: (choice: Choice) => void;
  last: string;
}

export function List({ index, choice, change, last }: Props) {
  const [inside, progress] = useInside(index, choice);
  const shown = useMemo(() => choose(index, choice, inside), [index, choice, inside]);
  const groups = useMemo(() => {
    const counts = new Map<string, Summary[]>();
    for (const each of index.trees) {
      const group = counts.get(groupOf(each));
      if (group) group.push(each);
      else counts.set(groupOf(each), [each]);
    }
    return [...counts].sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true }));
  }, [index]);
  const set = (part: Partial<Choice>) => change({ ...choice, ...part });
  const toggle = (name: string) =>
    set({ filters: choice.filters.includes(name) ? choice.filters.filter((each) => each !== name) : [...choice.filters, name] });
  const at = shown.findIndex((each) => each.id === last);
  return (
    <div class="home">
      <nav aria-label="Runs and their trees" class="groups">
        <button type="button" class={choice.group ? "" : "on"} onClick={() => set({ group: "" })}>
          everything <span class="few">{index.trees.length}</span>
        </button>
        {index.runs.map((run, number) => (
          <section key={number}>
            <h2><Foreign text={run.name} /></h2>
            <p class="note"><Foreign text={run.environment} />, seed {run.seed}</p>
            {(["trees", "episodes"] as const).map((kind) => {
              const own = groups.filter(([, [first]]) => first.run === number && first.kind === kind);
              if (!own.length) return null;
              return (
                <div key={kind}>
                  <h3>{kind === "trees" ? "Search trees" : "Episodes"}</h3>
                  {own.map(([key, [first, ...rest]]) => (
                    <button type="button" key={key} class={choice.group === key ? "on" : ""} onClick={() => set({ group: key })}>
                      <Foreign text={first.name} /> <span class="few">{told([first, ...rest])}</span>
                    </button>
                  ))}
                </div>
              );
            })}
            {run.alarms.length > 0 && (
              <details class="alarms">
                <summary>Warnings: {run.alarms.length}</summary>
                <ul>{run.alarms.map((each, place) => <li key={place}><Foreign text={each} /></li>)}</ul>
              </details>
            )}
            <Results rows={run.results} />
          </section>
        ))}
      </nav>
      <main class="listed">
        <div class="bar">
          <input
            id="search"
            type="search"
            placeholder="Search tasks"
            aria-label="Search tasks"
            value={choice.words}
            onInput={(event) => set({ words: event.currentTarget.value })}
          />
          <label><input type="checkbox" checked={choice.deep} onChange={(event) => set({ deep: event.currentTarget.checked })} /> in all texts</label>
          <label>
            order <select value={choice.order} onChange={(event) => set({ order: event.currentTarget.value })}>
              <option value="">as stored</option>
              {ORDERS.map(([name]) => <option key={name} value={name}>{name}, greatest first</option>)}
            </select>
          </label>
        </div>
        <div class="chips" role="group" aria-label="Filters">
          {FILTERS.map(([name, what]) => (
            <button type="button" key={name} title={what} aria-pressed={choice.filters.includes(name)} onClick={() => toggle(name)}>{name}</button>
          ))}
        </div>
        <p class="note" role="status">
          {shown.length.toLocaleString("en")} of {index.trees.length.toLocaleString("en")}{progress === null ? "" : `, searched ${progress} %`}
        </p>
        <Virtual count={shown.length} height={HEIGHT} at={at} role="list" aria-label="Trees and episodes">
          {(row) => {
            const each = shown[row];
            return (
              <div key={each.id} role="listitem" aria-posinset={row + 1} aria-setsize={shown.length}>
              <a class={`entry${each.id === last ? " selected" : ""}`} style={{ height: `${HEIGHT}px` }} href={address({ tree: each.id, step: 0 })}>
                <span class={`verdict ${verdict(each)[1]}`} title={verdict(each)[2]} aria-label={verdict(each)[2]} role="img">{verdict(each)[0]}</span>
                <span class="task"><Foreign text={each.task} /><small><Foreign text={cut(each.prompt ?? "", 140)} /></small></span>
                <span class="facts">{facts(each)}</span>
              </a>
              </div>
            );
          }}
        </Virtual>
      </main>
    </div>
  );
}

function Results({ rows }: { rows: Index["runs"][0]["results"] }) {
  if (!rows.length) return null;
  return (
    <details>
      <summary>Results</summary>
      <table>
        <thead><tr><th>policy</th><th>mode</th><th>success</th></tr></thead>
        <tbody>
          {rows.map((row, place) => (
            <tr key={place}>
              <td><Foreign text={String(row.policy)} /></td>
              <td><Foreign text={String(row.mode)} /></td>
              <td>{(100 * Number(row.success)).toFixed(1)} %</td>
            </tr>
          ))}
        </tbody>
      </table>
    </details>
  );
}

function told(group: Summary[]): string {
  const known = group.filter((each) => each.solved !== undefined);
  const solved = known.filter((each) => each.solved).length;
  return known.length ? `${solved} / ${group.length} solved` : String(group.length);
}

export function verdict(each: Summary): [glyph: string, name: string, words: string] {
  if (each.error) return ["⚠", "bad", "broke off"];
  if (each.solved) return ["★", "good", "solved"];
  if (each.found) return ["☆", "near", "a success was found and not taken"];
  if (each.solved === false) return ["✕", "bad", "failed"];
  return ["–", "unknown", "rewards are withheld"];
}

function facts(each: Summary): string {
  const parts: string[] = []; // what matters most first, since a phone has room for two lines
  if (each.return !== undefined) parts.push(`return ${short(each.return)}`);
  if ((each.regret ?? 0) >= 0.001) parts.push(`regret ${short(each.regret!)}`);
  if ((each.drop ?? 0) >= 0.001) parts.push(`drop ${short(each.drop!)}`);
  if (each.wrong) parts.push(`${each.wrong} wrong`);
  parts.push(`${each.steps ?? 0} steps`);
  if (each.kind === "trees") parts.push(`depth ${each.depth ?? 0}`, `${each.simulations ?? 0} simulations`);
  if (each.imagined) parts.push("imagined");
  return parts.map((each) => each.replaceAll(" ", "\u00a0")).join(" · ");
}

/** The trees whose texts hold the words, found piece by piece; null where only names are searched. */
function useInside(index: Index, { words, deep }: Choice): [ReadonlySet<Summary> | null, number | null] {
  const [found, setFound] = useState<ReadonlySet<Summary> | null>(null);
  const [progress, setProgress] = useState<number | null>(null);
  const latest = useRef(0);
  useEffect(() => {
    const mine = ++latest.current;
    const wanted = words.toLowerCase().trim();
    setProgress(null);
    setFound(deep && wanted ? new Set() : null);
    if (!deep || !wanted) return;
    const timer = setTimeout(async () => {
      const pieces = [...new Set(index.trees.map((each) => each.piece))];
      const hits = new Set<Summary>();
      for (const [place, piece] of pieces.entries()) {
        const trees = await loadPiece(piece);
        if (latest.current !== mine) return;
        for (const each of index.trees) if (each.piece === piece && holds(trees[each.place], wanted)) hits.add(each);
        setFound(new Set(hits));
        setProgress(Math.round((100 * (place + 1)) / pieces.length));
      }
    }, 250);
    return () => clearTimeout(timer);
  }, [index, words, deep]);
  return [found, progress];
}

function holds(rows: Rows, words: string): boolean {
  const has = (text: string | undefined) => text?.toLowerCase().includes(words) ?? false;
  return (
    rows.opening.some((each) => has(each.text)) ||
    has(rows.prompt) ||
    rows.steps.some((step) => has(step.text) || has(step.said) || has(step.call) || has(step.thought))
  );
}
