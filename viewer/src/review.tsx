// The review page: two actions side by side, or an episode, and what the reviewer says of it. It is served by
// `treeagent review`, which stores a mark before it answers. A mark that was not acknowledged is sent again.

import "./review.css";
import { render } from "preact";
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { Block, Foreign } from "./text";

interface Action {
  thought: string;
  call: string;
  error: string;
  text: string;
  /** The whole turn as it may be edited; null where it may not. */
  written: string | null;
  answer: string;
}

interface Item {
  id: string;
  kind: "pair" | "episode";
  task: string;
  talk: { role: string; text: string }[];
  actions: Action[];
}

interface State {
  who: string;
  run: string;
  waiting: number;
  judged: number;
  item: Item | null;
  marks: { id: string; when: string; verdict: string; task: string; note: string }[];
}

interface Asked {
  verdict: string;
  choice?: number | null;
  text?: string;
}

/** Milliseconds between tries to send a mark while the server does not answer. */
const AGAIN = 1_500;
const SIDES = ["left", "right"];

const identifier = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");

async function ask<Answer>(place: string, body?: object): Promise<Answer> {
  const sent = body && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const answer = await fetch(place, sent);
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.error);
  return told as Answer;
}

/** Sends until there is an answer: the server may have been ended and started again. What it refuses is an error. */
async function send(place: string, body: object, waiting: (is: boolean) => void): Promise<void> {
  for (;;) {
    try {
      await ask(place, body);
      waiting(false);
      return;
    } catch (error) {
      if (!(error instanceof TypeError)) throw error; // a TypeError says that nobody answered
      waiting(true);
      await new Promise((done) => setTimeout(done, AGAIN));
    }
  }
}

function App() {
  const [state, setState] = useState<State | null>(null);
  const [problem, setProblem] = useState("");
  const [offline, setOffline] = useState(false);
  const [note, setNote] = useState("");
  const [chosen, setChosen] = useState(0);
  const [edit, setEdit] = useState<string | null>(null);
  const [said, setSaid] = useState("");
  const busy = useRef(false);
  const noteField = useRef<HTMLTextAreaElement>(null);
  const editField = useRef<HTMLTextAreaElement>(null);

  const load = useCallback(async (after = "") => {
    try {
      setState(await ask<State>(`api/state${after && `/${after}`}`));
      setNote("");
      setChosen(0);
      setEdit(null);
      setProblem("");
    } catch (error) {
      setProblem(String((error as Error).message));
    }
  }, []);
  useEffect(() => void load(), [load]);
  useEffect(() => editField.current?.focus(), [edit === null]);

  const item = state?.item ?? null;
  const mark = useCallback(
    async (asked: Asked, stay = false) => {
      if (!item || busy.current) return;
      busy.current = true;
      try {
        await send("api/mark", { id: identifier(), item: item.id, note, ...asked }, setOffline);
        setSaid(`stored: ${asked.verdict}`);
        // An edit or a warning is of one action: the item stays to be judged.
        await load(stay ? `at/${item.id}` : item.id);
      } catch (error) {
        setProblem(String((error as Error).message));
      } finally {
        busy.current = false;
      }
    },
    [item, note, load],
  );
  const withdraw = async (id: string) => {
    try {
      await send("api/withdraw", { id: identifier(), mark: id }, setOffline);
      setSaid("withdrawn");
      await load();
    } catch (error) {
      setProblem(String((error as Error).message));
    }
  };
  const startEdit = () => {
    const written = item?.actions[chosen]?.written;
    if (written === null || written === undefined) setProblem("This action is only a part of a turn, which cannot be edited.");
    else setEdit(written);
  };
  const commands: Record<string, () => void> = !item
    ? {}
    : {
        ...(item.kind === "pair"
          ? {
              "1": () => mark({ verdict: "better", choice: 0 }),
              "2": () => mark({ verdict: "better", choice: 1 }),
              t: () => mark({ verdict: "tie" }),
            }
          : { "1": () => mark({ verdict: "solved" }), "2": () => mark({ verdict: "failed" }) }),
        s: () => mark({ verdict: "skip" }),
        v: () => mark({ verdict: "veto" }),
        e: startEdit,
        u: () => mark({ verdict: "unsafe", choice: chosen }, true),
        n: () => noteField.current?.focus(),
        ArrowLeft: () => setChosen(Math.max(chosen - 1, 0)),
        ArrowRight: () => setChosen(Math.min(chosen + 1, item.actions.length - 1)),
      };
  useEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.target instanceof HTMLTextAreaElement) {
        if (event.key === "Escape") event.target.blur();
        return;
      }
      const command = commands[event.key];
      if (!command) return;
      event.preventDefault();
      command();
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  });

  if (!state) return <p class="missing" role="status">{problem || "Loading …"}</p>;
  return (
    <>
      <header>
        <span class="name">review</span>
        <span class="crumbs">
          <span class="where"><Foreign text={state.run} /> · <Foreign text={state.who} /> · {state.judged} judged, {state.waiting} waiting</span>
        </span>
      </header>
      <main class="review">
        <p class={`note ${problem || offline ? "bad" : ""}`} role="status" id="status">
          {offline ? "Nobody answers: this mark is not stored. It is sent again as long as this page is open; those before it are stored." : problem || said}
        </p>
        {item ? (
          <Asking key={item.id} item={item} chosen={chosen} choose={setChosen} />
        ) : (
          <p id="done">Everything in this queue is judged.</p>
        )}
        {item && (
          <>
            <div class="bar" role="toolbar" aria-label="Verdict">
              {item.kind === "pair" ? (
                <>
                  <Key of="1" does={commands["1"]}>left is better</Key>
                  <Key of="2" does={commands["2"]}>right is better</Key>
                  <Key of="t" does={commands.t}>equally good</Key>
                </>
              ) : (
                <>
                  <Key of="1" does={commands["1"]}>solved</Key>
                  <Key of="2" does={commands["2"]}>failed</Key>
                </>
              )}
              <Key of="s" does={commands.s}>skip</Key>
              <Key of="v" does={commands.v}>{item.kind === "pair" ? "veto both" : "veto the episode"}</Key>
              <span class="few">of the {item.kind === "pair" ? SIDES[chosen] : `${chosen + 1}.`} action (← →):</span>
              <Key of="e" does={startEdit}>edit</Key>
              <Key of="u" does={commands.u}>unsafe</Key>
              <button type="button" id="veto-one" onClick={() => mark({ verdict: "veto", choice: chosen }, true)}>veto it</button>
            </div>
            {edit !== null && (
              <section aria-label="Edit">
                <h3>The turn as the agent should have written it</h3>
                <textarea id="edit" ref={editField} rows={5} value={edit} onInput={(event) => setEdit(event.currentTarget.value)} />
                <p>
                  <button type="button" id="store-edit" onClick={() => mark({ verdict: "edit", choice: chosen, text: edit }, true)}>store the edit</button>{" "}
                  <button type="button" onClick={() => setEdit(null)}>leave it</button>
                </p>
              </section>
            )}
            <label>
              Note, stored with the verdict (n, Esc)
              <textarea id="note" ref={noteField} rows={2} maxLength={10_000} value={note} onInput={(event) => setNote(event.currentTarget.value)} />
            </label>
          </>
        )}
        <details>
          <summary>Your last marks</summary>
          <ul class="told">
            {state.marks.map((each) => (
              <li key={each.id}>
                {each.verdict} · <Foreign text={each.task} /> {each.note && <Foreign text={`“${each.note}”`} />}{" "}
                <button type="button" onClick={() => withdraw(each.id)}>withdraw</button>
              </li>
            ))}
          </ul>
        </details>
      </main>
    </>
  );
}

function Key({ of, does, children }: { of: string; does: () => void; children: preact.ComponentChildren }) {
  return (
    <button type="button" id={`key-${of}`} aria-keyshortcuts={of} onClick={does}>
      <kbd>{of}</kbd> {children}
    </button>
  );
}

function Asking({ item, chosen, choose }: { item: Item; chosen: number; choose: (place: number) => void }) {
  return (
    <>
      <h1>
        {item.kind === "pair" ? "Which action is better here?" : "Did the agent do what it was asked?"} <Foreign text={item.task} />
      </h1>
      <section class="talk" aria-label="Conversation before">
        {item.talk.map((each, place) => <Block key={place} label={each.role} text={each.text} />)}
      </section>
      <div class={item.kind === "pair" ? "sides" : "steps"}>
        {item.actions.map((each, place) => (
          <section key={place} class={`side ${place === chosen ? "on" : ""}`} aria-current={place === chosen} onClick={() => choose(place)}
            aria-label={item.kind === "pair" ? SIDES[place] : `Step ${place + 1}`}>
            <h2>{item.kind === "pair" ? SIDES[place] : `Step ${place + 1}`}</h2>
            <Block label="Thought" text={each.error ? "" : each.thought} />
            <Block label={each.error ? "No call" : "Call"} text={each.error ? each.text : each.call} kind={each.error ? "bad" : ""} />
            <Block label="Answer" text={each.answer} />
          </section>
        ))}
      </div>
    </>
  );
}

render(<App />, document.getElementById("app")!);
