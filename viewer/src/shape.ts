// What a step looks like: its kind has a shape of its own, so that no meaning hangs on colour alone.

import { IMAGINED, REFUSED, SUCCESS, TERMINATED, TRIED, TRUNCATED, UNKNOWN, type Tree } from "./tree";

export type Shape = "circle" | "diamond" | "square" | "star" | "cross" | "bar" | "question" | "ring";

export const GLYPHS: Record<Shape, string> = {
  circle: "●",
  diamond: "◆",
  square: "■",
  star: "★",
  cross: "✕",
  bar: "❚",
  question: "?",
  ring: "○",
};

export const MEANINGS: [Shape, string][] = [
  ["circle", "a step of the environment"],
  ["diamond", "a step of a world model (imagined)"],
  ["star", "a success"],
  ["square", "another end of the task"],
  ["bar", "cut off by a limit (truncated)"],
  ["cross", "a malformed or refused call"],
  ["question", "the world model gave no answer"],
  ["ring", "a candidate that was never tried"],
];

export function shapeOf(tree: Tree, at: number): Shape {
  if (!tree.is(at, TRIED)) return "ring";
  if (tree.is(at, SUCCESS)) return "star";
  if (tree.is(at, UNKNOWN)) return "question";
  if (tree.is(at, REFUSED)) return "cross";
  if (tree.is(at, TERMINATED)) return "square";
  if (tree.is(at, TRUNCATED)) return "bar";
  return tree.is(at, IMAGINED) ? "diamond" : "circle";
}

/** The outline of a shape around (x, y); a cross and a question mark are strokes, the others are filled. */
export function trace(path: CanvasRenderingContext2D, shape: Shape, x: number, y: number, r: number): void {
  switch (shape) {
    case "circle":
    case "ring":
      path.moveTo(x + r, y);
      path.arc(x, y, r, 0, 2 * Math.PI);
      return;
    case "diamond":
      path.moveTo(x, y - 1.25 * r);
      path.lineTo(x + 1.25 * r, y);
      path.lineTo(x, y + 1.25 * r);
      path.lineTo(x - 1.25 * r, y);
      path.closePath();
      return;
    case "square":
      path.rect(x - r, y - r, 2 * r, 2 * r);
      return;
    case "bar":
      path.rect(x - 0.45 * r, y - 1.2 * r, 0.9 * r, 2.4 * r);
      return;
    case "star":
      for (let tip = 0; tip < 10; tip++) {
        const far = tip % 2 ? 0.6 * r : 1.45 * r;
        const angle = (Math.PI * tip) / 5 - Math.PI / 2;
        if (tip) path.lineTo(x + far * Math.cos(angle), y + far * Math.sin(angle));
        else path.moveTo(x, y - far);
      }
      path.closePath();
      return;
    case "cross":
      path.moveTo(x - r, y - r);
      path.lineTo(x + r, y + r);
      path.moveTo(x + r, y - r);
      path.lineTo(x - r, y + r);
      return;
    case "question":
      path.moveTo(x - 0.6 * r, y - 0.6 * r);
      path.arc(x, y - 0.6 * r, 0.6 * r, Math.PI, 2.5 * Math.PI);
      path.lineTo(x, y + 0.5 * r);
      path.moveTo(x, y + 0.9 * r);
      path.lineTo(x, y + 1.2 * r);
  }
}

/** Of nine colours from the lowest Q of a tree to its highest, which one a step has. */
export function tone(tree: Tree, at: number): number {
  const q = tree.q(at) ?? tree.steps[at].value ?? 0;
  const share = tree.high > tree.low ? (q - tree.low) / (tree.high - tree.low) : 0.5;
  return Math.round(8 * Math.min(1, Math.max(0, share)));
}

/** From orange to blue, which people of every colour vision tell apart, in lightness too. */
export const TONES = ["#b35806", "#d1791f", "#e5a04c", "#dfc08c", "#a9adb5", "#8db4d3", "#5b95c4", "#2f72ad", "#1b4f8a"];
