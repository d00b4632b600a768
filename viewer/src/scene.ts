// Draws a tree on a canvas and turns gestures into pans, zooms and clicks. Only what is in view is drawn.

import { COLUMN, firstAtLeast, lay, type Layout } from "./layout";
import { shapeOf, tone, TONES, trace } from "./shape";
import { CHOSEN, IMAGINED, PREFERRED, REJECTED, short, TRIED, type Tree } from "./tree";

const RADIUS = 7;
const LABELS_FROM = 0.62; // of the zoom
const SHAPES_FROM = 0.22;
const LEAST = 0.002;
const MOST = 4;

export interface Marked {
  selected: number;
  /** Steps that a search or a filter found. */
  hits: ReadonlySet<number>;
  /** Steps that exist at a moment of the replay, and the path of its simulation; null where nothing is replayed. */
  replay: { visits: ReadonlyMap<number, number>; path: ReadonlySet<number> } | null;
}

interface Colours {
  ink: string;
  soft: string;
  line: string;
  accent: string;
  dream: string;
  paper: string;
  warn: string;
}

export class Scene {
  layout: Layout;
  private x = 0;
  private y = 0;
  private zoom = 1;
  private wide = 1;
  private tall = 1;
  private dense = 1;
  private waiting = 0;
  private colours!: Colours;
  private readonly pointers = new Map<number, { x: number; y: number }>();
  private moved = 0;
  private marked: Marked = { selected: 0, hits: new Set(), replay: null };
  private mini: HTMLCanvasElement | null = null;
  private readonly stop = new AbortController();

  constructor(
    private readonly canvas: HTMLCanvasElement,
    private readonly map: HTMLCanvasElement,
    private tree: Tree,
    private open: ReadonlySet<number>,
    private readonly on: { select: (at: number) => void; toggle: (at: number) => void },
  ) {
    this.layout = lay(tree, open);
    const signal = this.stop.signal;
    const observer = new ResizeObserver(() => this.resize());
    observer.observe(canvas);
    signal.addEventListener("abort", () => observer.disconnect());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.recolour(), { signal });
    canvas.addEventListener("pointerdown", (event) => this.down(event), { signal });
    canvas.addEventListener("pointermove", (event) => this.move(event), { signal });
    for (const kind of ["pointerup", "pointercancel"] as const) {
      canvas.addEventListener(kind, (event) => this.up(event), { signal });
    }
    canvas.addEventListener("wheel", (event) => this.wheel(event), { signal, passive: false });
    canvas.addEventListener("dblclick", (event) => this.twice(event), { signal });
    const jump = (event: PointerEvent) => event.buttons && this.jump(event);
    map.addEventListener("pointerdown", jump, { signal });
    map.addEventListener("pointermove", jump, { signal });
    this.recolour();
    this.resize();
    this.begin();
  }

  destroy(): void {
    this.stop.abort();
    cancelAnimationFrame(this.waiting);
  }

  show(tree: Tree, open: ReadonlySet<number>, marked: Marked): void {
    const other = tree !== this.tree;
    const selected = marked.selected !== this.marked.selected;
    const anchor = this.layout.y.get(marked.selected);
    this.marked = marked;
    if (other || open !== this.open) {
      this.tree = tree;
      this.open = open;
      this.layout = lay(tree, open);
      this.mini = null;
      const now = this.layout.y.get(marked.selected);
      // The step under the eyes stays where it was when a subtree opens.
      if (!other && anchor !== undefined && now !== undefined) this.y += (now - anchor) * this.zoom;
    }
    if (other) this.begin();
    else if (selected) this.reveal(marked.selected);
    this.ask();
  }

  /** Labels at a readable size, the root at the left, the selected step in view. */
  begin(): void {
    this.zoom = this.wide < 500 ? 0.8 : 1;
    this.x = -24;
    this.y = -this.tall / 2;
    this.reveal(this.marked.selected);
    this.ask();
  }

  fit(): void {
    const wide = this.layout.right + COLUMN, tall = this.layout.bottom - this.layout.top + 60;
    this.zoom = Math.max(LEAST, Math.min(1, this.wide / (wide + 40), this.tall / tall));
    this.x = -20;
    this.y = ((this.layout.top + this.layout.bottom) / 2) * this.zoom - this.tall / 2;
    this.ask();
  }

  zoomBy(factor: number, x = this.wide / 2, y = this.tall / 2): void {
    const zoom = Math.min(MOST, Math.max(LEAST, this.zoom * factor));
    this.x = ((this.x + x) * zoom) / this.zoom - x;
    this.y = ((this.y + y) * zoom) / this.zoom - y;
    this.zoom = zoom;
    this.ask();
  }

  panBy(x: number, y: number): void {
    this.x += x;
    this.y += y;
    this.ask();
  }

  /** Move the view no further than it takes to see a step. */
  reveal(at: number): void {
    const y = this.layout.y.get(at);
    if (y === undefined) return;
    const left = this.tree.depth[at] * COLUMN * this.zoom - this.x, top = y * this.zoom - this.y;
    const room = Math.min(COLUMN * this.zoom, this.wide / 2);
    if (left < 20) this.x += left - 20;
    else if (left > this.wide - room) this.x += left - this.wide + room;
    if (top < 30) this.y += top - 30;
    else if (top > this.tall - 30) this.y += top - this.tall + 30;
    this.ask();
  }

  /** The next frame draws. */
  ask(): void {
    this.waiting ||= requestAnimationFrame(() => {
      this.waiting = 0;
      this.draw();
    });
  }

  private recolour(): void {
    const style = getComputedStyle(this.canvas);
    const named = (name: string) => style.getPropertyValue(`--${name}`).trim();
    this.colours = {
      ink: named("ink"),
      soft: named("soft"),
      line: named("line"),
      accent: named("accent"),
      dream: named("dream"),
      paper: named("card"),
      warn: named("warn"),
    };
    this.mini = null;
    this.ask();
  }

  private resize(): void {
    this.dense = Math.min(devicePixelRatio || 1, 2);
    this.wide = this.canvas.clientWidth || 1;
    this.tall = this.canvas.clientHeight || 1;
    for (const [canvas, wide, tall] of [
      [this.canvas, this.wide, this.tall],
      [this.map, this.map.clientWidth, this.map.clientHeight],
    ] as const) {
      canvas.width = Math.round(wide * this.dense);
      canvas.height = Math.round(tall * this.dense);
    }
    this.mini = null;
    this.ask();
  }

  private draw(): void {
    const context = this.canvas.getContext("2d")!;
    const { zoom, colours } = this;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.fillStyle = colours.paper;
    context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    const scale = zoom * this.dense;
    context.setTransform(scale, 0, 0, scale, -this.x * this.dense, -this.y * this.dense);
    const margin = 24;
    const left = this.x / zoom - margin, right = (this.x + this.wide) / zoom + margin;
    const top = this.y / zoom - margin, bottom = (this.y + this.tall) / zoom + margin;
    this.edges(context, left, right, top, bottom);
    const seen: [at: number, x: number, y: number][] = [];
    this.layout.columns.forEach(({ steps, ys }, depth) => {
      const x = depth * COLUMN;
      if (x < left - COLUMN || x > right) return;
      const from = firstAtLeast((place) => ys[place], ys.length, top);
      for (let place = from; place < ys.length && ys[place] <= bottom; place++) seen.push([steps[place], x, ys[place]]);
    });
    if (zoom < SHAPES_FROM) this.dots(context, seen);
    else this.shapes(context, seen);
    if (zoom >= LABELS_FROM) this.labels(context, seen);
    this.drawMap();
  }

  private edges(context: CanvasRenderingContext2D, left: number, right: number, top: number, bottom: number): void {
    const { tree, marked, zoom } = this;
    const plain = new Path2D(), dashed = new Path2D(), chosen = new Path2D(), replayed = new Path2D();
    const curved = zoom >= SHAPES_FROM;
    this.layout.columns.forEach(({ steps, ys, parents }, depth) => {
      const to = depth * COLUMN, from = to - COLUMN;
      if (!depth || from > right || to < left) return;
      const first = firstAtLeast((place) => Math.max(ys[place], parents[place]), ys.length, top);
      for (let place = first; place < ys.length && Math.min(ys[place], parents[place]) <= bottom; place++) {
        const at = steps[place];
        if (marked.replay && !marked.replay.visits.has(at)) continue;
        const path = marked.replay?.path.has(at) ? replayed : tree.is(at, CHOSEN) ? chosen : tree.is(at, IMAGINED) ? dashed : plain;
        path.moveTo(from, parents[place]);
        if (curved) path.bezierCurveTo(from + COLUMN / 2, parents[place], from + COLUMN / 2, ys[place], to, ys[place]);
        else path.lineTo(to, ys[place]);
      }
    });
    const width = Math.min(1 / zoom, 8);
    context.lineWidth = width;
    context.strokeStyle = this.colours.line;
    context.stroke(plain);
    context.strokeStyle = this.colours.dream;
    context.setLineDash([5 * width, 3 * width]);
    context.stroke(dashed);
    context.setLineDash([]);
    context.strokeStyle = this.colours.accent;
    context.lineWidth = 3 * width;
    context.stroke(chosen);
    context.strokeStyle = this.colours.warn;
    context.lineWidth = 4 * width;
    context.stroke(replayed);
  }

  /** From far away a step is a dot of its colour. */
  private dots(context: CanvasRenderingContext2D, seen: [number, number, number][]): void {
    const size = Math.max(2.5 / this.zoom, RADIUS);
    const groups: [number, number][][] = TONES.map(() => []);
    for (const [at, x, y] of seen) {
      if (!this.marked.replay || this.marked.replay.visits.has(at)) groups[tone(this.tree, at)].push([x, y]);
    }
    groups.forEach((group, place) => {
      context.fillStyle = TONES[place];
      for (const [x, y] of group) context.fillRect(x - size / 2, y - size / 2, size, size);
    });
    context.fillStyle = this.colours.warn;
    for (const [at, x, y] of seen) {
      if (at === this.marked.selected || this.marked.hits.has(at)) context.fillRect(x - size, y - size, 2 * size, 2 * size);
    }
  }

  private shapes(context: CanvasRenderingContext2D, seen: [number, number, number][]): void {
    const { tree, marked, colours } = this;
    for (const [at, x, y] of seen) {
      const shape = shapeOf(tree, at);
      const absent = marked.replay && !marked.replay.visits.has(at) && at !== 0;
      context.globalAlpha = absent ? 0.15 : 1;
      const size = shape === "ring" ? RADIUS * 0.6 : RADIUS;
      if (marked.hits.has(at)) {
        context.fillStyle = `${colours.warn}66`;
        context.beginPath();
        context.arc(x, y, RADIUS + 6, 0, 2 * Math.PI);
        context.fill();
      }
      context.beginPath();
      trace(context, shape, x, y, size);
      const stroked = shape === "cross" || shape === "question";
      if (!stroked && shape !== "ring") {
        context.fillStyle = TONES[tone(tree, at)];
        context.fill();
      }
      context.lineWidth = tree.is(at, CHOSEN) ? 2.5 : stroked ? 2.5 : 1;
      context.strokeStyle = tree.is(at, CHOSEN) ? colours.accent : stroked ? colours.warn : colours.ink;
      context.stroke();
      if (tree.is(at, IMAGINED)) {
        context.setLineDash([2, 2]);
        context.lineWidth = 1.5;
        context.strokeStyle = colours.dream;
        context.beginPath();
        context.arc(x, y, RADIUS + 4, 0, 2 * Math.PI);
        context.stroke();
        context.setLineDash([]);
      }
      for (const [flag, turn, colour] of [
        [PREFERRED, -1, TONES[8]],
        [REJECTED, 1, TONES[0]],
      ] as const) {
        if (!tree.is(at, flag)) continue;
        const far = turn * (RADIUS + 4);
        context.fillStyle = colour;
        context.beginPath();
        context.moveTo(x - 5, y + far);
        context.lineTo(x + 5, y + far);
        context.lineTo(x, y + far + turn * 7);
        context.fill();
      }
      const hidden = tree.children[at].length && !this.open.has(at) ? tree.below[at] : 0;
      if (hidden) {
        context.fillStyle = colours.soft;
        context.font = "600 10px system-ui, sans-serif";
        context.textAlign = "right";
        context.fillText(`+${hidden}`, x - RADIUS - 4, y + 3.5);
      }
      if (at === marked.selected) {
        context.lineWidth = 3;
        context.strokeStyle = colours.ink;
        context.beginPath();
        context.arc(x, y, RADIUS + 7, 0, 2 * Math.PI);
        context.stroke();
      }
      context.globalAlpha = 1;
    }
  }

  private labels(context: CanvasRenderingContext2D, seen: [number, number, number][]): void {
    const { tree, marked, colours } = this;
    context.textAlign = "left";
    context.direction = "ltr";
    // A rim in the colour of the paper keeps words apart from the lines below them.
    const write = (words: string, x: number, y: number) => {
      context.strokeText(words, x, y);
      context.fillText(words, x, y);
    };
    context.lineWidth = 4;
    context.lineJoin = "round";
    context.strokeStyle = colours.paper;
    for (const [at, x, y] of seen) {
      const absent = marked.replay && !marked.replay.visits.has(at) && at !== 0;
      if (absent) continue;
      context.fillStyle = tree.is(at, CHOSEN) ? colours.accent : tree.is(at, TRIED) ? colours.ink : colours.soft;
      context.font = tree.is(at, CHOSEN) ? "600 11.5px ui-monospace, monospace" : "11.5px ui-monospace, monospace";
      write(tree.title(at, 25), x + RADIUS + 8, y - 2);
      context.fillStyle = colours.soft;
      context.font = "10.5px system-ui, sans-serif";
      const q = tree.q(at), visits = marked.replay?.visits.get(at) ?? tree.visits(at);
      const figures = tree.summary.kind === "trees" ? [`N ${visits}`] : at ? [`r ${short(tree.steps[at].reward ?? 0)}`] : [];
      if (q !== undefined) figures.push(`Q ${short(q)}`);
      if (tree.steps[at].advantage !== undefined) figures.push(`A ${short(tree.steps[at].advantage!)}`);
      write(figures.join("  "), x + RADIUS + 8, y + 11);
    }
  }

  /** The whole tree in small. The dots are drawn once, the frame of the view each time. */
  private drawMap(): void {
    const { width, height } = this.map;
    if (!width || !height) return;
    const { top, right } = this.layout, tall = this.layout.bottom - top || 1, wide = right || 1;
    const pad = 6 * this.dense;
    const place = (x: number, y: number) =>
      [pad + (x / wide) * (width - 2 * pad), pad + ((y - top) / tall) * (height - 2 * pad)] as const;
    if (this.mini === null) {
      this.mini = document.createElement("canvas");
      this.mini.width = width;
      this.mini.height = height;
      const small = this.mini.getContext("2d")!;
      this.layout.columns.forEach(({ steps, ys }, depth) => {
        steps.forEach((at, row) => {
          const [x, y] = place(depth * COLUMN, ys[row]);
          small.fillStyle = this.tree.is(at, CHOSEN) ? this.colours.accent : TONES[tone(this.tree, at)];
          small.fillRect(x - 1, y - 1, 2 * this.dense, 2);
        });
      });
    }
    const context = this.map.getContext("2d")!;
    context.fillStyle = this.colours.paper;
    context.fillRect(0, 0, width, height);
    context.drawImage(this.mini, 0, 0);
    const [left, up] = place(this.x / this.zoom, this.y / this.zoom);
    const [end, down] = place((this.x + this.wide) / this.zoom, (this.y + this.tall) / this.zoom);
    context.strokeStyle = this.colours.ink;
    context.lineWidth = this.dense;
    context.strokeRect(left, up, end - left, down - up);
  }

  private jump(event: PointerEvent): void {
    const box = this.map.getBoundingClientRect();
    const share = (at: number, size: number) => Math.min(1, Math.max(0, (at - 6) / (size - 12)));
    const x = share(event.clientX - box.left, box.width) * this.layout.right;
    const y = this.layout.top + share(event.clientY - box.top, box.height) * (this.layout.bottom - this.layout.top);
    this.x = x * this.zoom - this.wide / 2;
    this.y = y * this.zoom - this.tall / 2;
    this.ask();
  }

  private place(event: MouseEvent): { x: number; y: number } {
    const box = this.canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  private down(event: PointerEvent): void {
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, this.place(event));
    this.moved = this.pointers.size > 1 ? Infinity : 0;
  }

  private move(event: PointerEvent): void {
    const before = this.pointers.get(event.pointerId);
    if (before === undefined) return;
    const now = this.place(event);
    const others = [...this.pointers].filter(([id]) => id !== event.pointerId);
    if (others.length) {
      const [, other] = others[0];
      const gap = Math.hypot(now.x - other.x, now.y - other.y), was = Math.hypot(before.x - other.x, before.y - other.y);
      if (was > 1) this.zoomBy(gap / was, (now.x + other.x) / 2, (now.y + other.y) / 2);
    } else {
      this.panBy(before.x - now.x, before.y - now.y);
    }
    this.moved += Math.hypot(now.x - before.x, now.y - before.y);
    this.pointers.set(event.pointerId, now);
  }

  private up(event: PointerEvent): void {
    const at = this.pointers.delete(event.pointerId) && this.moved < 5 ? this.hit(this.place(event)) : null;
    if (at !== null && event.type === "pointerup") this.on.select(at);
  }

  private twice(event: MouseEvent): void {
    const at = this.hit(this.place(event));
    if (at !== null) this.on.toggle(at);
  }

  private wheel(event: WheelEvent): void {
    event.preventDefault();
    if (event.shiftKey) return this.panBy(event.deltaX || event.deltaY, 0);
    const { x, y } = this.place(event);
    this.zoomBy(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), x, y);
  }

  /** The step at a place of the canvas, whose label belongs to it. */
  private hit({ x, y }: { x: number; y: number }): number | null {
    const far = (this.x + x) / this.zoom, deep = (this.y + y) / this.zoom;
    const depth = Math.floor((far + 16) / COLUMN);
    const column = this.layout.columns[depth];
    if (column === undefined) return null;
    const next = firstAtLeast((place) => column.ys[place], column.ys.length, deep);
    const near = [next - 1, next].filter((place) => column.ys[place] !== undefined);
    near.sort((a, b) => Math.abs(column.ys[a] - deep) - Math.abs(column.ys[b] - deep));
    const reach = Math.max(17, 12 / this.zoom);
    return near.length && Math.abs(column.ys[near[0]] - deep) <= reach ? column.steps[near[0]] : null;
  }
}
