// What was sampled, each token shaded by its log-probability: the darker, the less likely the policy found it.

import { useState } from "preact/hooks";
import { short, type Tree } from "./tree";

/** Log-probabilities at and below this, in nats, have the darkest shade: about 1 in 400. */
const DARKEST = -6;
const MOST = 3_000;

export function Tokens({ tree, at }: { tree: Tree; at: number }) {
  const { tokens = [], logprobs = [], text } = tree.steps[at];
  const [under, setUnder] = useState<number | null>(null);
  if (!tokens.length) return null;
  const known = Object.keys(tree.vocabulary).length > 0;
  const sum = logprobs.reduce((total, each) => total + each, 0);
  const told = (place: number) => {
    const each = logprobs[place] ?? 0;
    return `${each.toFixed(2)} nats, probability ${short(Math.exp(each))}`;
  };
  return (
    <section class="block">
      <h3>Sampled: {tokens.length} tokens, {short(sum)} nats</h3>
      <pre class="tokens" tabIndex={0} aria-label={`Sampled text: ${text ?? ""}`} onMouseLeave={() => setUnder(null)}>
        {tokens.slice(0, MOST).map((token, place) => (
          <span
            key={place}
            title={told(place)}
            class={`lp${Math.round(8 * Math.min(1, (logprobs[place] ?? 0) / DARKEST))}`}
            onMouseEnter={() => setUnder(place)}
          >
            {known ? (tree.vocabulary[token] ?? `[${token}]`) : `[${token}]`}
          </span>
        ))}
        {tokens.length > MOST ? "…" : ""}
      </pre>
      <p class="note">
        {under === null
          ? known ? "The darker a token, the less likely it was." : "No tokenizer is at hand: tokens are shown by their ids."
          : `token ${tokens[under]}: ${told(under)}`}
      </p>
    </section>
  );
}
