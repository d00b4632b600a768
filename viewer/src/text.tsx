// Text of an agent or an environment. It is only ever set as text, and its direction cannot leave its own box.

import { useState } from "preact/hooks";

/** Characters that are laid out at once: a line of a megabyte takes a browser seconds. */
const MOST = 20_000;

export function Foreign({ text }: { text: string }) {
  return <bdi class="foreign">{text}</bdi>;
}

interface Texts {
  label: string;
  text: string | undefined;
  kind?: string;
  images?: string[];
}

export function Block({ label, text, kind = "", images = [] }: Texts) {
  const [whole, setWhole] = useState(false);
  if (!text?.trim()) return null;
  const long = text.length > MOST && !whole;
  return (
    <section class={`block ${kind}`}>
      <h3>{label}</h3>
      <pre tabIndex={0} aria-label={label}>{long ? text.slice(0, MOST) : text}</pre>
      {long && (
        <button type="button" onClick={() => setWhole(true)}>
          Show all {text.length.toLocaleString("en")} characters
        </button>
      )}
      {images.map((image, place) => <img key={place} src={image} alt={`Image ${place + 1}`} />)}
    </section>
  );
}
