// The address after #: the tree and the step that are shown.

export interface Route {
  tree: string;
  step: number;
}

export function readRoute(): Route {
  const [tree, step] = location.hash.slice(1).split("/");
  return { tree: decode(tree ?? ""), step: Number.parseInt(step ?? "0", 10) || 0 };
}

function decode(word: string): string {
  try {
    return decodeURIComponent(word);
  } catch {
    return word;
  }
}

export function address({ tree, step }: Route): string {
  return tree ? `#${encodeURIComponent(tree)}/${step}` : "#";
}
