// A step beside one of its siblings: figures, and what differs in their words.

import { diffWordsWithSpace } from "diff";
import { useMemo } from "preact/hooks";
import { Figures } from "./detail";
import { Glyph } from "./outline";
import { Foreign } from "./text";
import { short, type Tree } from "./tree";

/** Longer texts are cut before they are compared: the comparison takes time with the square of what differs. */
const MOST = 4_000;

interface Props {
  tree: Tree;
  at: number;
  other: number | null;
  choose: (at: number) => void;
  select: (at: number) => void;
}

export function Compare({ tree, at, other, choose, select }: Props) {
  const siblings = tree.siblings(at);
  if (!siblings.length) return <p class="note">This step has no siblings.</p>;
  const against = other !== null && siblings.includes(other) ? other : siblings[0];
  return (
    <div class="compare">
      <h2>Siblings</h2>
      <ul class="siblings" role="listbox" aria-label="Sibling to compare with">
        {siblings.map((each) => (
          <li key={each} role="option" aria-selected={each === against}>
            <button type="button" class={each === against ? "on" : ""} onClick={() => choose(each)}>
              <Glyph tree={tree} at={each} /> <Foreign text={tree.title(each, 60)} />
              <span class="few">N {tree.visits(each)}{tree.q(each) === undefined ? "" : ` Q ${short(tree.q(each)!)}`}</span>
            </button>
          </li>
        ))}
      </ul>
      <div class="sides">
        <section aria-label="This step">
          <h3>This step</h3>
          <Figures tree={tree} at={at} />
        </section>
        <section aria-label="The sibling">
          <h3>
            Sibling <button type="button" class="link" onClick={() => select(against)}>go there</button>
          </h3>
          <Figures tree={tree} at={against} />
        </section>
      </div>
      <Difference label="Sampled" before={tree.steps[at].text} after={tree.steps[against].text} />
      <Difference label="Observation" before={tree.steps[at].said} after={tree.steps[against].said} />
      <p class="note">
        <del>only in this step</del> <ins>only in the sibling</ins>
      </p>
    </div>
  );
}

export function Difference({ label, before = "", after = "" }: { label: string; before?: string; after?: string }) {
  const parts = useMemo(
    () => diffWordsWithSpace(before.slice(0, MOST), after.slice(0, MOST), { timeout: 500 }) ?? null,
    [before, after],
  );
  if (!before && !after) return null;
  return (
    <section class="block">
      <h3>{label}{before === after ? ": the same" : ""}</h3>
      <pre class="difference" tabIndex={0} aria-label={`Difference: ${label}`}>
        {parts === null ? (
          <><del>{before.slice(0, MOST)}</del><ins>{after.slice(0, MOST)}</ins></>
        ) : (
          parts.map((part, place) =>
            part.added ? <ins key={place}>{part.value}</ins> : part.removed ? <del key={place}>{part.value}</del> : part.value,
          )
        )}
        {before.length > MOST || after.length > MOST ? "…" : ""}
      </pre>
    </section>
  );
}
