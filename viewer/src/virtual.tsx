// A list of rows of one height, of which only those in view are in the page.

import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

interface Props {
  count: number;
  height: number;
  /** The row to keep in view. */
  at: number;
  children: (row: number) => ComponentChildren;
  [attribute: string]: unknown;
}

export function Virtual({ count, height, at, children, ...attributes }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [tall, setTall] = useState(600);
  useLayoutEffect(() => {
    const element = box.current!;
    const observer = new ResizeObserver(() => setTall(element.clientHeight));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    const element = box.current!;
    if (at < 0) return;
    if (at * height < element.scrollTop) element.scrollTop = at * height;
    else if ((at + 1) * height > element.scrollTop + element.clientHeight) {
      element.scrollTop = (at + 1) * height - element.clientHeight;
    }
  }, [at, count, tall]);
  const first = Math.max(0, Math.floor(top / height) - 5);
  const last = Math.min(count, Math.ceil((top + tall) / height) + 5);
  const rows: ComponentChildren[] = [];
  for (let row = first; row < last; row++) rows.push(children(row));
  return (
    <div {...attributes} ref={box} class="virtual" onScroll={(event) => setTop(event.currentTarget.scrollTop)}>
      <div class="virtual-all" style={{ height: `${count * height}px` }}>
        <div style={{ transform: `translateY(${first * height}px)` }}>{rows}</div>
      </div>
    </div>
  );
}
