// What the shapes mean and what the keys do.

import { useEffect, useRef } from "preact/hooks";
import { GLYPHS, MEANINGS, TONES } from "./shape";

const KEYS: [string, string][] = [
  ["↑ ↓", "outline: the step above or below; drawing: the sibling"],
  ["← →", "outline: close or open, then go up or down a level; drawing: parent, most visited child"],
  ["Home End", "first and last step in view"],
  ["Enter", "open or close"],
  ["*", "open all siblings"],
  ["x", "open all; again: the first view"],
  ["/", "search"],
  ["n p", "next and previous step that was found"],
  ["c", "compare with a sibling; again: the next one"],
  ["d", "details"],
  ["r", "replay the simulations"],
  [", .", "one simulation back or on"],
  ["i", "icicle or tree"],
  ["+ − 0", "zoom in, out, whole tree"],
  ["[ ]", "previous and next tree"],
  ["Esc", "leave the replay, the search, the tree"],
  ["?", "this page"],
];

export function Help({ close }: { close: () => void }) {
  const box = useRef<HTMLDialogElement>(null);
  useEffect(() => box.current?.showModal(), []);
  return (
    <dialog ref={box} onClose={close} aria-label="Shapes and keys">
      <button type="button" class="close" aria-label="Close" onClick={() => box.current?.close()}>✕</button>
      <h2>Shapes</h2>
      <ul class="legend">
        {MEANINGS.map(([shape, meaning]) => <li key={shape}><b aria-hidden="true">{GLYPHS[shape]}</b> {meaning}</li>)}
        <li><b aria-hidden="true">▲ ▼</b> preferred and rejected in a pair of siblings</li>
        <li><b aria-hidden="true">━</b> thick line: the chosen path; dashed line and ring: imagined</li>
        <li>
          <b aria-hidden="true">{TONES.map((tone) => <i key={tone} style={{ color: tone }}>■</i>)}</b> Q, or V before a visit, from the lowest of the tree to the highest
        </li>
      </ul>
      <h2>Figures</h2>
      <p>N visits, Q mean return, P prior, V estimate of the state, r reward, A advantage, drop: Q minus the mean of the tried siblings by visits.</p>
      <h2>Keys</h2>
      <dl class="keys">{KEYS.map(([key, what]) => <div key={key}><dt><kbd>{key}</kbd></dt><dd>{what}</dd></div>)}</dl>
    </dialog>
  );
}
