// How search came to this: its simulations one after the other.

import { useEffect, useState } from "preact/hooks";
import type { Tree } from "./tree";

export interface Moment {
  visits: Map<number, number>;
  path: Set<number>;
  end: number;
}

/** The tree after the first `count` simulations: how often each step was passed, and the path of the last one. */
export function momentAt(tree: Tree, count: number): Moment {
  const order = tree.rows.order ?? [];
  const visits = new Map<number, number>([[0, 0]]);
  const end = count ? order[count - 1] : 0;
  for (const at of order.slice(0, count)) {
    if (at >= 0) for (const each of tree.path(at)) visits.set(each, (visits.get(each) ?? 0) + 1);
  }
  return { visits, path: new Set(count && end >= 0 ? tree.path(end) : []), end };
}

interface Props {
  tree: Tree;
  count: number;
  set: (count: number) => void;
  leave: () => void;
}

export function Replay({ tree, count, set, leave }: Props) {
  const order = tree.rows.order ?? [];
  const [playing, setPlaying] = useState(false);
  const going = playing && count < order.length;
  useEffect(() => {
    if (!going) return;
    const timer = setTimeout(() => set(count + 1), Math.max(60, Math.min(600, 12_000 / order.length)));
    return () => clearTimeout(timer);
  }, [going, count]);
  const end = count ? order[count - 1] : 0;
  const told = !count ? "before the first simulation" : end < 0 ? "its node was removed by a replay in the environment" : tree.title(end, 80);
  const play = () => {
    if (!going && count >= order.length) set(0);
    setPlaying(!going);
  };
  return (
    <div class="replay" role="group" aria-label="Replay of the simulations">
      <button type="button" aria-label="One simulation back" disabled={!count} onClick={() => set(count - 1)}>◂</button>
      <button type="button" aria-label={going ? "Pause" : "Play"} onClick={play}>{going ? "❚❚" : "▶"}</button>
      <button type="button" aria-label="One simulation on" disabled={count >= order.length} onClick={() => set(count + 1)}>▸</button>
      <input
        type="range"
        min={0}
        max={order.length}
        value={count}
        aria-label="Simulation"
        aria-valuetext={`simulation ${count} of ${order.length}: ${told}`}
        onInput={(event) => set(Number(event.currentTarget.value))}
      />
      <span class="told">
        {count} / {order.length} <bdi class="foreign">{told}</bdi>
      </span>
      <button type="button" aria-label="End the replay" onClick={leave}>✕</button>
    </div>
  );
}
