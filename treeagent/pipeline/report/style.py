"""The style sheet of the report's pages: system fonts, light and dark mode."""

SERIES = (
    ("#0b6e62", "#4cc3b0"),
    ("#b5500a", "#f0984a"),
    ("#3653c5", "#8ea4ff"),
    ("#8a3fa0", "#d39be8"),
    ("#6b6400", "#cfc44a"),
)
"""(light, dark): the colour of each series of a figure in light and in dark mode. The first is the accent colour."""
_LIGHT, _DARK = (" ".join(f"--series-{place}: {pair[side]};" for place, pair in enumerate(SERIES)) for side in (0, 1))

CSS = f":root {{ {_LIGHT} }} @media (prefers-color-scheme:dark) {{ :root {{ {_DARK} }} }}"
CSS += """
:root {
  color-scheme: light dark; --paper: #fbfaf7; --card: #fff; --ink: #1c1e21; --soft: #63676d; --line: #dddad2;
  --accent: #0b6e62; --tint: #0b6e6218; --warn: #9a5b00; --dream: #8a3fa0;
}
@media (prefers-color-scheme:dark) {
  :root {
    --paper: #14161a; --card: #1c1f24; --ink: #e8e6e1; --soft: #9ba0a8; --line: #363a42; --accent: #4cc3b0;
    --tint: #4cc3b022; --warn: #e0a04a; --dream: #c98be0;
  }
}
* { box-sizing: border-box }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
}
main { max-width: 70rem; margin: 0 auto; padding: 2rem 1rem 4rem }
h1 { font-size: .9rem; letter-spacing: .04em; color: var(--soft); font-weight: 600; margin: 0 }
.headline {
  font-size: clamp(1.25rem,3.2vw,1.9rem); line-height: 1.3; font-weight: 600; margin: .4rem 0 2rem;
  max-width: 46rem; text-wrap: balance;
}
h2 { font-size: 1.15rem; margin: 2.5rem 0 .75rem }
h3 { font-size: .95rem; margin: 1.25rem 0 .5rem; color: var(--soft); font-weight: 600 }
.card {
  background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: .25rem 1rem;
  overflow-x: auto;
}
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .92rem }
th { font-size: .78rem; color: var(--soft); font-weight: 600; text-align: right; vertical-align: bottom }
th, td { padding: .5rem .6rem; border-bottom: 1px solid var(--line); text-align: right }
td { white-space: nowrap }
tr:last-child td { border-bottom: 0 }
.word { text-align: left }
.best td { font-weight: 650 }
.interval {
  position: relative; display: block; height: .45rem; min-width: 9rem; margin-top: .25rem;
  border-radius: 99px; background: var(--tint);
}
.interval i {
  position: absolute; top: 0; bottom: 0; border-radius: 99px; background: var(--accent); opacity: .45;
}
.interval b {
  position: absolute; top: -.15rem; width: 3px; height: .75rem; margin-left: -1.5px; border-radius: 2px;
  background: var(--accent);
}
ul.alarms { margin: .75rem 0; padding: .6rem 1rem .6rem 2rem; color: var(--warn) }
section.alarms { margin: 1rem 0 1.5rem; border-color: var(--warn); border-left-width: 4px; padding: .6rem 1rem }
section.alarms h2 { margin: 0 0 .3rem; color: var(--warn) }
.alarms ol { margin: .4rem 0; padding-left: 1.3rem }
.alarms p { margin: .3rem 0 }
.cause { font-weight: 600 }
.curves { display: grid; grid-template-columns: repeat(auto-fill,minmax(min(100%,19rem),1fr)); gap: .75rem }
.curves .card { padding: .5rem; margin: 0 }
figcaption { font-size: .75rem; text-align: right }
figcaption a { margin-left: .6rem }
svg { width: 100%; height: auto; display: block }
svg text { font-family: inherit!important }
details > summary { cursor: pointer }
code, pre, td, dd, li { unicode-bidi: isolate }
.more > summary { color: var(--soft); font-size: .9rem; margin: .75rem 0 }
.tree { padding: .75rem 1rem }
.tree details, .tree .leaf { border-left: 2px solid var(--line); padding-left: .75rem; margin: .35rem 0 }
.tree details.chosen { border-left-color: var(--accent) }
.tree summary { overflow-wrap: anywhere }
.tree code { font: .88rem/1.5 ui-monospace,SFMono-Regular,Menlo,monospace }
.chosen > summary code { color: var(--accent); font-weight: 650 }
.untried { color: var(--soft) }
.figures {
  display: inline-flex; flex-wrap: wrap; gap: 0 .7rem; margin-left: .6rem; font-size: .8rem;
  color: var(--soft); font-variant-numeric: tabular-nums;
}
.figures b { color: var(--ink); font-weight: 600 }
.mark {
  font-size: .75rem; border: 1px solid currentColor; border-radius: 99px; padding: 0 .45rem;
  color: var(--warn); margin-left: .4rem; white-space: nowrap;
}
.imagined { color: var(--dream) }
.mark.untried, .mark.terminated { color: var(--soft) }
a { color: var(--accent) }
.label { font-size: .75rem; color: var(--soft); margin: .5rem 0 0 }
pre {
  margin: .15rem 0 .5rem; padding: .6rem .75rem; background: var(--tint); border-radius: 8px;
  white-space: pre-wrap; overflow-wrap: anywhere;
  font: .84rem/1.5 ui-monospace,SFMono-Regular,Menlo,monospace; max-height: 24rem; overflow: auto;
}
dl {
  display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.25rem; margin: .75rem 0;
  font-size: .92rem;
}
dt { color: var(--soft) }
dd { margin: 0; overflow-wrap: anywhere }
"""
