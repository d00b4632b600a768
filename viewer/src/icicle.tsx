// Visits as an icicle: a row a depth, a step as wide as its share of the visits. It shows trees too deep to draw.

import { useEffect, useMemo, useRef } from "preact/hooks";
import { GLYPHS, shapeOf, TONES, tone } from "./shape";
import { CHOSEN, cut, IMAGINED, type Tree } from "./tree";

const ROW = 22;

interface Box {
  at: number;
  left: number;
  width: number;
  row: number;
}

/** The boxes of the steps below `top`, as shares of the width; a step keeps what its children leave. */
export function boxes(tree: Tree, top: number, least: number): Box[] {
  const found: Box[] = [];
  const first = tree.depth[top];
  const stack: [number, number, number][] = [[top, 0, 1]];
  while (stack.length) {
    const [at, left, width] = stack.pop()!;
    found.push({ at, left, width, row: tree.depth[at] - first });
    const tried = tree.children[at].filter((each) => tree.visits(each));
    const sum = tried.reduce((total, each) => total + tree.visits(each), 0);
    const whole = Math.max(sum, tree.visits(at)) || 1;
    let from = left;
    for (const each of tried) {
      const share = (width * tree.visits(each)) / whole;
      if (share >= least) stack.push([each, from, share]);
      from += share;
    }
  }
  return found;
}

interface Props {
  tree: Tree;
  selected: number;
  hits: ReadonlySet<number>;
  select: (at: number) => void;
}

export function Icicle({ tree, selected, hits, select }: Props) {
  const canvas = useRef<HTMLCanvasElement>(null);
  // The widest view in which the selected step is at least a twentieth of the width.
  const top = useMemo(() => {
    const path = tree.path(selected);
    const visits = Math.max(1, tree.visits(selected));
    return path.find((at) => at === 0 ? visits * 20 >= tree.visits(0) : visits * 20 >= tree.visits(at)) ?? selected;
  }, [tree, selected]);
  const laid = useMemo(() => boxes(tree, top, 0.0005), [tree, top]);
  const rows = laid.reduce((most, box) => Math.max(most, box.row), 0) + 1;
  useEffect(() => {
    const draw = () => {
      const element = canvas.current;
      if (element === null) return; // a change of size is told once more after the icicle is gone
      const dense = Math.min(devicePixelRatio || 1, 2), wide = element.clientWidth;
      element.width = wide * dense;
      element.height = rows * ROW * dense;
      const context = element.getContext("2d")!;
      const style = getComputedStyle(element);
      const colour = (name: string) => style.getPropertyValue(`--${name}`).trim();
      context.scale(dense, dense);
      context.font = "11px ui-monospace, monospace";
      context.textBaseline = "middle";
      for (const { at, left, width, row } of laid) {
        const x = left * wide, y = row * ROW, w = width * wide;
        context.fillStyle = TONES[tone(tree, at)];
        context.fillRect(x, y, Math.max(w - 1, 0.5), ROW - 1);
        if (tree.is(at, IMAGINED) && w > 4) {
          context.strokeStyle = colour("paper");
          context.setLineDash([3, 3]);
          context.strokeRect(x + 2, y + 2, w - 5, ROW - 5);
          context.setLineDash([]);
        }
        if (tree.is(at, CHOSEN)) {
          context.fillStyle = colour("accent");
          context.fillRect(x, y + ROW - 5, Math.max(w - 1, 0.5), 4);
        }
        if (at === selected || hits.has(at)) {
          context.strokeStyle = at === selected ? colour("ink") : colour("warn");
          context.lineWidth = 2.5;
          context.strokeRect(x + 1.25, y + 1.25, Math.max(w - 3.5, 1), ROW - 3.5);
        }
        if (w > 40) {
          context.fillStyle = tone(tree, at) > 1 && tone(tree, at) < 6 ? "#000" : "#fff";
          const words = `${GLYPHS[shapeOf(tree, at)]} ${tree.title(at, 80)}`;
          context.fillText(cut(words, Math.floor((w - 8) / 6.7)), x + 4, y + ROW / 2 - 1);
        }
      }
    };
    draw();
    const observer = new ResizeObserver(draw);
    observer.observe(canvas.current!.parentElement!);
    return () => observer.disconnect();
  }, [laid, selected, hits]);
  const hit = (event: MouseEvent) => {
    const box = canvas.current!.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width, row = Math.floor((event.clientY - box.top) / ROW);
    return laid.find((each) => each.row === row && x >= each.left && x < each.left + each.width);
  };
  return (
    <div class="icicle">
      {top !== 0 && (
        <button type="button" onClick={() => select(tree.steps[top].parent)}>▴ {tree.depth[top]} levels above</button>
      )}
      <canvas
        ref={canvas}
        class="drawing"
        tabIndex={0}
        role="img"
        style={{ height: `${rows * ROW}px` }}
        aria-label={`Icicle of visits, at ${tree.describe(selected)}. The outline lists the same steps.`}
        onClick={(event) => {
          const found = hit(event);
          if (found) select(found.at);
        }}
        onMouseMove={(event) => {
          const found = hit(event);
          event.currentTarget.title = found ? tree.describe(found.at) : "";
        }}
      />
    </div>
  );
}
