// The tree as a drawing. The outline holds the same steps for those who cannot see it.

import { useEffect, useRef } from "preact/hooks";
import { Scene, type Marked } from "./scene";
import type { Tree } from "./tree";

interface Props extends Marked {
  tree: Tree;
  open: ReadonlySet<number>;
  select: (at: number) => void;
  toggle: (at: number) => void;
}

export function TreeCanvas({ tree, open, selected, hits, replay, select, toggle }: Props) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const map = useRef<HTMLCanvasElement>(null);
  const scene = useRef<Scene | null>(null);
  const on = useRef({ select, toggle });
  on.current = { select, toggle };
  useEffect(() => {
    const made = new Scene(canvas.current!, map.current!, tree, open, {
      select: (at) => on.current.select(at),
      toggle: (at) => on.current.toggle(at),
    });
    scene.current = made;
    // For benchmarks and for scripts of the user's own.
    Object.assign(canvas.current!, { scene: made });
    return () => made.destroy();
  }, []);
  useEffect(() => scene.current?.show(tree, open, { selected, hits, replay }));
  return (
    <div class="canvas">
      <canvas
        ref={canvas}
        class="drawing"
        tabIndex={0}
        role="img"
        aria-label={`Search tree, at ${tree.describe(selected)}. Arrow keys move; the outline lists the same steps.`}
        onKeyDown={(event) => {
          const key = event.key;
          if (key === "+" || key === "=") scene.current?.zoomBy(1.25);
          else if (key === "-") scene.current?.zoomBy(0.8);
          else if (key === "0") scene.current?.fit();
          else return;
          event.preventDefault();
        }}
      />
      <canvas ref={map} class="minimap" aria-hidden="true" />
      <div class="zoom">
        <button type="button" aria-label="Zoom in" onClick={() => scene.current?.zoomBy(1.4)}>+</button>
        <button type="button" aria-label="Zoom out" onClick={() => scene.current?.zoomBy(1 / 1.4)}>−</button>
        <button type="button" aria-label="Show the whole tree" onClick={() => scene.current?.fit()}>⤢</button>
      </div>
    </div>
  );
}
