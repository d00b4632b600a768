// The tree as an outline, with the keys and roles of the ARIA tree pattern.

import { useMemo } from "preact/hooks";
import { GLYPHS, shapeOf, TONES, tone } from "./shape";
import { CHOSEN, PREFERRED, REJECTED, short, TRIED, type Tree } from "./tree";
import { Foreign } from "./text";
import { Virtual } from "./virtual";

const HEIGHT = 30;

interface Props {
  tree: Tree;
  open: ReadonlySet<number>;
  selected: number;
  hits: ReadonlySet<number>;
  select: (at: number) => void;
  toggle: (at: number) => void;
}

export function Outline({ tree, open, selected, hits, select, toggle }: Props) {
  const rows = useMemo(() => tree.visible(open), [tree, open]);
  const place = useMemo(() => rows.indexOf(selected), [rows, selected]);
  return (
    <Virtual
      count={rows.length}
      height={HEIGHT}
      at={place}
      role="tree"
      aria-label="Outline of the search tree"
      aria-activedescendant={place < 0 ? undefined : `row-${selected}`}
      tabIndex={0}
    >
      {(row) => {
        const at = rows[row], children = tree.children[at], siblings = tree.children[tree.steps[at].parent] ?? [at];
        const q = tree.q(at);
        return (
          <div
            key={at}
            id={`row-${at}`}
            role="treeitem"
            class={`row${at === selected ? " selected" : ""}${hits.has(at) ? " hit" : ""}`}
            aria-level={tree.depth[at] + 1}
            aria-setsize={siblings.length}
            aria-posinset={siblings.indexOf(at) + 1}
            aria-selected={at === selected}
            aria-expanded={children.length ? open.has(at) : undefined}
            aria-label={tree.describe(at)}
            style={{ height: `${HEIGHT}px`, paddingLeft: `${indent(tree.depth[at])}px` }}
            onClick={() => select(at)}
            onDblClick={() => toggle(at)}
          >
            <span
              class="twist"
              onClick={(event) => {
                event.stopPropagation();
                toggle(at);
              }}
            >
              {children.length ? (open.has(at) ? "▾" : "▸") : ""}
            </span>
            <Glyph tree={tree} at={at} />
            <code class={tree.is(at, CHOSEN) ? "on-path" : tree.is(at, TRIED) ? "" : "faint"}>
              <Foreign text={tree.title(at, 60)} />
            </code>
            <span class="few">
              {!tree.is(at, TRIED) ? "untried" : tree.summary.kind === "trees" ? `N ${tree.visits(at)}` : ""}
              {q === undefined ? "" : ` Q ${short(q)}`}
            </span>
          </div>
        );
      }}
    </Virtual>
  );
}

/** Deep levels are set in less, so that there is room for words. */
function indent(depth: number): number {
  return 6 + 14 * Math.min(depth, 7) + 2 * Math.min(Math.max(depth - 7, 0), 30);
}

export function Glyph({ tree, at }: { tree: Tree; at: number }) {
  const shape = shapeOf(tree, at);
  const plain = shape === "ring" || shape === "cross" || shape === "question";
  return (
    <span class="glyph" aria-hidden="true">
      <i style={plain ? {} : { color: TONES[tone(tree, at)] }}>{GLYPHS[shape]}</i>
      {tree.is(at, PREFERRED) ? "▲" : tree.is(at, REJECTED) ? "▼" : ""}
    </span>
  );
}
