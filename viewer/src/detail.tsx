// Everything about one step: its figures, what was sampled token by token, what the environment said.

import { Glyph } from "./outline";
import { Tokens } from "./tokens";
import { Block, Foreign } from "./text";
import type { Tree } from "./tree";

export function Detail({ tree, at }: { tree: Tree; at: number }) {
  const step = tree.steps[at];
  return (
    <div class="detail">
      <h2>
        <Glyph tree={tree} at={at} /> <Foreign text={tree.title(at, 400)} />
      </h2>
      <p class="marks">{tree.marks(at).map((mark) => <span key={mark} class={`mark ${mark.replaceAll(" ", "-")}`}>{mark}</span>)}</p>
      <Figures tree={tree} at={at} />
      {at === 0 ? <Start tree={tree} /> : (
        <>
          <Block label="Thought" text={step.thought} />
          <Block label="Call" text={step.error ? "" : step.call} />
          <Block label="Why it is no call" text={step.error} kind="bad" />
          <Tokens tree={tree} at={at} />
          <Block label={step.flags && step.value === undefined && !step.said ? "" : "Observation"} text={step.said} images={step.images} />
        </>
      )}
    </div>
  );
}

export function Figures({ tree, at }: { tree: Tree; at: number }) {
  return (
    <dl class="figures">
      {tree.figures(at).map(([name, value, what]) => (
        <div key={name} title={what}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

function Start({ tree }: { tree: Tree }) {
  const { rows, summary } = tree;
  const spent = Object.entries(rows.budget).filter(([, amount]) => amount);
  return (
    <>
      {rows.error && <Block label="Broke off" text={rows.error} kind="bad" />}
      {summary.ending && <p>Ended: {summary.ending}; return {summary.return}</p>}
      {rows.opening.length ? rows.opening.map((each, place) => <Block key={place} label={`The agent reads (${each.role})`} text={each.text} images={each.images} />) : <Block label="Task" text={rows.prompt} />}
      <details>
        <summary>What it cost</summary>
        <dl class="cost">
          {spent.map(([name, amount]) => (
            <div key={name}>
              <dt>{name.replaceAll("_", " ")}</dt>
              <dd>{amount.toLocaleString("en")}</dd>
            </div>
          ))}
        </dl>
      </details>
    </>
  );
}
