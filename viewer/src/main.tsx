// The page: the list of trees, or one tree in outline, drawing and detail, which move in step.

import "./style.css";
import { render } from "preact";
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { TreeCanvas } from "./canvas";
import { Compare } from "./compare";
import { loadIndex, loadPiece, type Index, type Summary } from "./data";
import { Detail } from "./detail";
import { Help } from "./help";
import { Icicle } from "./icicle";
import { choose, List, NO_CHOICE, verdict, type Choice } from "./list";
import { recall, remember } from "./memory";
import { Outline } from "./outline";
import { momentAt, Replay } from "./replay";
import { address, readRoute, type Route } from "./route";
import { Foreign } from "./text";
import { CHOSEN, IMAGINED, PREFERRED, REFUSED, REJECTED, SUCCESS, Tree, TRUNCATED } from "./tree";

/** About as many steps are in the first view of a tree: what a person can look over. */
const FIRST = 150;

const HIGHLIGHTS: [string, (tree: Tree, at: number) => boolean][] = [
  ["success", (tree, at) => tree.is(at, SUCCESS)],
  ["chosen", (tree, at) => at > 0 && tree.is(at, CHOSEN)],
  ["preferred or rejected", (tree, at) => tree.is(at, PREFERRED | REJECTED)],
  ["critical (drop ≥ 0.5)", (tree, at) => (tree.steps[at].drop ?? 0) >= 0.5],
  ["high regret (drop ≤ −0.5, chosen)", (tree, at) => tree.is(at, CHOSEN) && (tree.steps[at].drop ?? 0) <= -0.5],
  ["imagined", (tree, at) => tree.is(at, IMAGINED)],
  ["refused", (tree, at) => tree.is(at, REFUSED)],
  ["truncated", (tree, at) => tree.is(at, TRUNCATED)],
];

function App({ index }: { index: Index }) {
  const [route, setRoute] = useState<Route>(readRoute);
  const [choice, setChoice] = useState<Choice>(() => recall<Choice>("choice") ?? NO_CHOICE);
  const [help, setHelp] = useState(false);
  const last = useRef("");
  useEffect(() => {
    const changed = () => setRoute(readRoute());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  useEffect(() => remember("choice", choice), [choice]);
  const listed = useMemo(() => choose(index, { ...choice, deep: false, words: choice.deep ? "" : choice.words }, null), [index, choice]);
  const summary = index.trees.find((each) => each.id === route.tree);
  if (route.tree) last.current = route.tree;
  const go = useCallback((to: Route, keep = false) => {
    if (keep) {
      history.replaceState(null, "", address(to));
      setRoute(to);
    } else location.hash = address(to);
  }, []);
  useEffect(() => {
    const keys = (event: KeyboardEvent) => {
      if (typing(event)) return;
      if (event.key === "?") setHelp(true);
      else if (event.key === "/") document.getElementById("search")?.focus();
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", keys);
    return () => removeEventListener("keydown", keys);
  }, []);
  return (
    <>
      <header>
        <a href="#" class="name">treeagent</a>
        {summary ? <Crumbs index={index} summary={summary} listed={listed} /> : <span class="crumbs">{index.runs.map((run) => run.name).join(", ")}</span>}
        <button type="button" onClick={() => setHelp(true)} aria-label="Shapes and keys">?</button>
      </header>
      {summary ? (
        <Opened key={summary.id} index={index} summary={summary} step={route.step} go={go} listed={listed} />
      ) : (
        <>
          {route.tree && <p class="note missing" role="alert">This page holds no tree “<Foreign text={route.tree} />”.</p>}
          <List index={index} choice={choice} change={setChoice} last={last.current} />
        </>
      )}
      {help && <Help close={() => setHelp(false)} />}
    </>
  );
}

function typing(event: KeyboardEvent): boolean {
  const target = event.target as HTMLElement;
  const field = target.closest("select, textarea, dialog") ?? (target instanceof HTMLInputElement && target.type !== "range" && target.type !== "checkbox");
  return !!field || event.ctrlKey || event.metaKey || event.altKey;
}

function neighbour(listed: Summary[], id: string, step: number): string | undefined {
  const at = listed.findIndex((each) => each.id === id);
  return at < 0 ? undefined : listed[at + step]?.id;
}

function Crumbs({ index, summary, listed }: { index: Index; summary: Summary; listed: Summary[] }) {
  const [glyph, name, words] = verdict(summary);
  const before = neighbour(listed, summary.id, -1), after = neighbour(listed, summary.id, 1);
  return (
    <nav class="crumbs" aria-label="Where this tree is">
      <span class="where">
        {index.runs.length > 1 && <><Foreign text={index.runs[summary.run].name} /> › </>}
        <a href="#"><Foreign text={summary.name} /></a> › <Foreign text={summary.task} />
      </span>
      <span class={`verdict ${name}`} title={words} role="img" aria-label={words}>{glyph}</span>
      <a class={before ? "" : "off"} href={before && address({ tree: before, step: 0 })} aria-label="Previous tree">‹</a>
      <a class={after ? "" : "off"} href={after && address({ tree: after, step: 0 })} aria-label="Next tree">›</a>
    </nav>
  );
}

interface OpenedProps {
  index: Index;
  summary: Summary;
  step: number;
  go: (to: Route, keep?: boolean) => void;
  listed: Summary[];
}

function Opened({ index, summary, step, go, listed }: OpenedProps) {
  const [tree, setTree] = useState<Tree | null>(null);
  const [failed, setFailed] = useState("");
  useEffect(() => {
    let wanted = true;
    loadPiece(summary.piece).then(
      (trees) => wanted && setTree(new Tree(summary, trees[summary.place], index.runs[summary.run].vocabulary)),
      (error: unknown) => wanted && setFailed(String(error)),
    );
    return () => {
      wanted = false;
    };
  }, [summary]);
  if (failed) return <p class="note missing" role="alert">The tree cannot be read: {failed}</p>;
  if (tree === null) return <p class="note missing" role="status">Loading…</p>;
  const at = step >= 0 && step < tree.steps.length ? step : 0;
  return <Workbench tree={tree} at={at} go={go} listed={listed} />;
}

type Pane = "outline" | "drawing" | "detail";

function Workbench({ tree, at, go, listed }: { tree: Tree; at: number; go: OpenedProps["go"]; listed: Summary[] }) {
  const id = tree.summary.id;
  const [open, setOpen] = useState<ReadonlySet<number>>(() => {
    const kept = recall<number[]>(`open ${id}`);
    return withPath(tree, kept ? new Set(kept) : tree.firstOpen(FIRST), at);
  });
  const [view, setView] = useState<"tree" | "icicle">("tree");
  const [pane, setPane] = useState<Pane>("drawing");
  const [tab, setTab] = useState<"step" | "compare">("step");
  const [other, setOther] = useState<number | null>(null);
  const [words, setWords] = useState("");
  const [highlight, setHighlight] = useState("");
  const [count, setMoment] = useState<number | null>(null);
  const total = tree.rows.order?.length ?? 0;

  useEffect(() => setOpen((before) => withPath(tree, before, at)), [at]);
  useEffect(() => setOther(null), [at]);
  useEffect(() => remember(`open ${id}`, open.size < 5000 ? [...open] : undefined), [open]);

  const found = useMemo(() => {
    if (!words.trim() && !highlight) return [];
    const test = HIGHLIGHTS.find(([name]) => name === highlight)?.[1];
    const steps = words.trim() ? tree.matches(words.trim()) : tree.steps.map((_, each) => each);
    return test ? steps.filter((each) => test(tree, each)) : steps;
  }, [tree, words, highlight]);
  const hits = useMemo(() => new Set(found), [found]);
  const replay = useMemo(() => (count === null ? null : momentAt(tree, count)), [tree, count]);

  // The replay is drawn in the tree, so that it closes the icicle, which closes it.
  const setCount = (now: number | null) => {
    setMoment(now);
    if (now !== null) setView("tree");
  };
  const turn = () => {
    setView(view === "tree" ? "icicle" : "tree");
    setMoment(null);
  };
  const select = (to: number) => go({ tree: id, step: to }, true);
  const toggle = (each: number) => {
    if (!tree.children[each].length) return;
    const now = new Set(open);
    if (!now.delete(each)) now.add(each);
    // A step that is no longer in view cannot stay selected.
    if (!now.has(each) && tree.path(at).includes(each) && at !== each) select(each);
    setOpen(now);
  };
  const next = (turn: number) => {
    if (!found.length) return;
    const after = turn > 0 ? found.find((each) => each > at) : found.findLast((each) => each < at);
    select(after ?? (turn > 0 ? found[0] : found[found.length - 1]));
  };
  const openAll = () => {
    const all = new Set(tree.steps.flatMap((_, each) => (tree.children[each].length ? [each] : [])));
    setOpen(open.size >= all.size ? withPath(tree, tree.firstOpen(FIRST), at) : all);
  };
  const compare = () => {
    const siblings = tree.siblings(at);
    const place = tab === "compare" && siblings.length ? siblings.indexOf(other ?? siblings[0]) + 1 : 0;
    setOther(siblings.length ? siblings[place % siblings.length] : null);
    setTab("compare");
    setPane("detail");
  };

  const keys = (event: KeyboardEvent) => {
    const target = event.target as HTMLElement;
    if (event.key === "Escape") {
      if (typing(event)) target.blur();
      else if (document.querySelector("dialog")) return;
      else if (count !== null) setCount(null);
      else if (words || highlight) {
        setWords("");
        setHighlight("");
      } else go({ tree: "", step: 0 });
      return;
    }
    if (event.defaultPrevented || typing(event) || document.querySelector("dialog")) return;
    const drawing = target.classList.contains("drawing");
    const text = target.tagName === "PRE" || target.tagName === "INPUT";
    const parent = tree.steps[at].parent, children = tree.children[at];
    const rows = () => tree.visible(open);
    const beside = (turn: number) => {
      if (!drawing) {
        const all = rows();
        return all[all.indexOf(at) + turn];
      }
      const same = parent < 0 ? [] : tree.children[parent];
      return same[same.indexOf(at) + turn];
    };
    const act: Record<string, () => unknown> = {
      ArrowDown: () => to(beside(1)),
      ArrowUp: () => to(beside(-1)),
      ArrowLeft: () => (!drawing && open.has(at) && children.length ? toggle(at) : to(parent)),
      ArrowRight: () => (children.length && !open.has(at) ? toggle(at) : to(children[0])),
      Home: () => to(0),
      End: () => to(rows().at(-1)),
      Enter: () => toggle(at),
      "*": () => parent >= 0 && setOpen(new Set([...open, ...tree.children[parent].filter((each) => tree.children[each].length)])),
      x: openAll,
      n: () => next(1),
      p: () => next(-1),
      c: compare,
      d: () => setTab("step"),
      i: turn,
      r: () => total && setCount(count === null ? 0 : null),
      ".": () => total && setCount(Math.min(total, (count ?? -1) + 1)),
      ",": () => count !== null && setCount(Math.max(0, count - 1)),
      "[": () => jump(-1),
      "]": () => jump(1),
    };
    const to = (step: number | undefined) => step !== undefined && step >= 0 && select(step);
    const jump = (turn: number) => {
      const there = neighbour(listed, id, turn);
      if (there) go({ tree: there, step: 0 });
    };
    const moves = event.key.startsWith("Arrow") || event.key === "Home" || event.key === "End" || event.key === "Enter";
    if (moves && (text || target.tagName === "BUTTON" || target.tagName === "A" || target.tagName === "SUMMARY")) return;
    if (!Object.hasOwn(act, event.key)) return;
    event.preventDefault();
    act[event.key]();
  };
  const latest = useRef(keys);
  latest.current = keys;
  useEffect(() => {
    const heard = (event: KeyboardEvent) => latest.current(event);
    addEventListener("keydown", heard);
    return () => removeEventListener("keydown", heard);
  }, []);

  const shown = { tree, selected: at, hits, select };
  return (
    <div class={`workbench show-${pane}`}>
      <div class="bar">
        <input
          id="search"
          type="search"
          placeholder="Search this tree"
          aria-label="Search this tree"
          value={words}
          onInput={(event) => setWords(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === "Enter") next(event.shiftKey ? -1 : 1);
          }}
        />
        <select aria-label="Highlight steps" value={highlight} onChange={(event) => setHighlight(event.currentTarget.value)}>
          <option value="">highlight…</option>
          {HIGHLIGHTS.map(([name]) => <option key={name} value={name}>{name}</option>)}
        </select>
        {(words.trim() || highlight) && (
          <span class="note" role="status">
            {found.length} found <button type="button" aria-label="Previous one found" onClick={() => next(-1)}>‹</button>
            <button type="button" aria-label="Next one found" onClick={() => next(1)}>›</button>
          </span>
        )}
        <span class="buttons">
          <button type="button" aria-pressed={view === "icicle"} onClick={turn}>icicle</button>
          <button type="button" onClick={openAll}>{open.size > FIRST || open.size >= tree.steps.length ? "fewer" : "open all"}</button>
          <button
            type="button"
            aria-pressed={count !== null}
            disabled={!total}
            title={total ? "The simulations in their order" : "This tree was stored without the order of its simulations"}
            onClick={() => setCount(count === null ? 0 : null)}
          >
            replay
          </button>
        </span>
      </div>
      <div class="tabs" role="tablist" aria-label="Parts">
        {(["outline", "drawing", "detail"] as const).map((each) => (
          <button type="button" key={each} role="tab" aria-selected={pane === each} onClick={() => setPane(each)}>{each}</button>
        ))}
      </div>
      <div class="panes">
        <div class="pane outline"><Outline {...shown} open={open} toggle={toggle} /></div>
        <div class="pane middle">
          {view === "tree" ? <TreeCanvas {...shown} open={open} toggle={toggle} replay={replay} /> : <Icicle {...shown} />}
          {count !== null && <Replay tree={tree} count={count} set={setCount} leave={() => setCount(null)} />}
        </div>
        <div class="pane side" role="region" aria-label="The selected step">
          <div class="tabs inner" role="tablist" aria-label="About the step">
            <button type="button" role="tab" aria-selected={tab === "step"} onClick={() => setTab("step")}>step</button>
            <button type="button" role="tab" aria-selected={tab === "compare"} onClick={() => setTab("compare")}>compare</button>
            <button type="button" class="up" disabled={!at} onClick={() => select(tree.steps[at].parent)}>▴ parent</button>
          </div>
          {tab === "step" ? <Detail key={at} tree={tree} at={at} /> : <Compare tree={tree} at={at} other={other} choose={setOther} select={select} />}
        </div>
      </div>
      <p class="unseen" role="status" aria-live="polite">
        {count === null ? tree.describe(at) : `simulation ${count} of ${total}: ${replay && replay.end >= 0 ? tree.title(replay.end) : ""}`}
      </p>
    </div>
  );
}

/** The open steps, and those that lead to a step. */
function withPath(tree: Tree, open: ReadonlySet<number>, at: number): ReadonlySet<number> {
  const missing = tree.path(at).slice(0, -1).filter((each) => !open.has(each));
  return missing.length ? new Set([...open, ...missing]) : open;
}

const root = document.getElementById("app")!;
loadIndex().then(
  (index) => {
    root.textContent = "";
    render(<App index={index} />, root);
  },
  (error: unknown) => {
    root.textContent = `This page cannot be shown: ${String(error)}`;
  },
);
