// Where the steps in view stand: depth from left to right, siblings one below the other.

import { hierarchy, tree as tidy } from "d3-hierarchy";
import type { Tree } from "./tree";

export const ROW = 34;
export const COLUMN = 210;

export interface Column {
  /** The steps of one depth from top to bottom, and the heights of them and of their parents. */
  steps: number[];
  ys: number[];
  parents: number[];
}

export interface Layout {
  columns: Column[];
  /** By step; undefined where it is not in view. */
  y: Map<number, number>;
  top: number;
  bottom: number;
  right: number;
  count: number;
}

export function lay(tree: Tree, open: ReadonlySet<number>): Layout {
  const root = hierarchy(0, (at: number) => (open.has(at) ? tree.children[at] : null));
  tidy<number>().nodeSize([ROW, COLUMN]).separation(() => 1)(root);
  const layout: Layout = { columns: [], y: new Map(), top: 0, bottom: 0, right: 0, count: 0 };
  // Breadth first: within a depth from top to bottom.
  root.each((node) => {
    const y = node.x ?? 0;
    const column = (layout.columns[node.depth] ??= { steps: [], ys: [], parents: [] });
    column.steps.push(node.data);
    column.ys.push(y);
    column.parents.push(node.parent?.x ?? y);
    layout.y.set(node.data, y);
    layout.top = Math.min(layout.top, y);
    layout.bottom = Math.max(layout.bottom, y);
    layout.count += 1;
  });
  layout.right = (layout.columns.length - 1) * COLUMN;
  return layout;
}

/** The first place in a rising list whose value is at least `wanted`. */
export function firstAtLeast(values: (place: number) => number, count: number, wanted: number): number {
  let low = 0, high = count;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values(middle) < wanted) low = middle + 1;
    else high = middle;
  }
  return low;
}
