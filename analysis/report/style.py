"""The page's one style sheet: system fonts, light, readable on a phone and on paper."""

CSS = """
:root { color-scheme: light; --ink: #1b2733; --soft: #51606f; --line: #d5dde5; --tint: #f3f6f9; --link: #0b57a4; }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem 1.25rem 4rem; color: var(--ink); background: #fff;
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.35rem; margin: 3rem 0 .75rem; padding-top: .75rem; border-top: 2px solid var(--line); }
h3 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p, ul, dl { max-width: 52rem; margin: .6rem 0; overflow-wrap: anywhere; }
ul { padding-left: 1.25rem; }
a { color: var(--link); }
nav ul { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; }
nav a { display: inline-block; padding: .3rem 0; }
abbr { text-decoration: none; color: var(--soft); }
code, pre { font: .875rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
code { overflow-wrap: anywhere; }
.note { color: var(--soft); font-size: .9rem; }
.partial { border-left: 4px solid #b35900; background: #fff6ec; padding: .6rem .9rem; }
.scroll { overflow-x: auto; margin: 1rem 0; background:
  linear-gradient(to right, #fff 2rem, #fff0) left / 3rem 100%,
  linear-gradient(to left, #fff 2rem, #fff0) right / 3rem 100%,
  linear-gradient(to right, #1b273340, #1b273300) left / 1rem 100%,
  linear-gradient(to left, #1b273340, #1b273300) right / 1rem 100%;
  background-repeat: no-repeat; background-attachment: local, local, scroll, scroll; }
.scroll:focus-visible, a:focus-visible, pre:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: 0 0 .4rem; }
th, td { padding: .38rem .6rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: baseline;
  white-space: nowrap; }
thead th { border-bottom: 2px solid var(--soft); vertical-align: bottom; white-space: normal; }
tbody th { font-weight: 500; }
tfoot th, tfoot td { border-top: 2px solid var(--soft); font-weight: 600; }
.text { text-align: left; }
th[scope="row"] { position: sticky; left: 0; background: #fff; white-space: normal; min-width: 8rem;
  max-width: 24rem; overflow-wrap: anywhere; }
thead th:first-child { position: sticky; left: 0; background: #fff; }
td.text { white-space: normal; min-width: 7rem; overflow-wrap: break-word; }
td.text:has(code) { min-width: 16rem; }
td code { font-size: .95em; }
td u, td b u { text-underline-offset: 3px; }
td small { color: var(--soft); font-weight: 400; font-size: .85em; }
figure { margin: 1.5rem 0 2.5rem; display: grid; grid-template-columns: auto minmax(14rem, 1fr); gap: 1rem 2rem;
  align-items: start; }
figure img { display: block; max-width: 100%; height: auto; }
figcaption { max-width: 52rem; font-size: .95rem; }
article { border: 1px solid var(--line); border-radius: 6px; padding: .75rem 1rem; margin: 1rem 0; }
article h4 { margin: 0 0 .4rem; font-size: 1rem; }
pre { margin: .3rem 0; padding: .6rem .75rem; background: var(--tint); border-radius: 4px; white-space: pre-wrap;
  overflow-wrap: anywhere; max-height: 26rem; overflow-y: auto; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; margin-top: .75rem; }
.pair > div { min-width: 0; }
.pair h5 { margin: 0; font-size: .95rem; }
.right { color: #0a5c36; font-weight: 600; }
.wrong { color: #a3210f; font-weight: 600; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.25rem; }
dt { color: var(--soft); }
dd { margin: 0; min-width: 0; overflow-wrap: anywhere; }
.sides { display: grid; grid-template-columns: 1fr 1fr; gap: 0 2rem; }
.sides > div { min-width: 0; }
dl.facts { max-width: none; font-size: .95rem; }
@media (max-width: 66rem) { figure, .sides { grid-template-columns: 1fr; } }
@media (max-width: 46rem) {
  body { padding: 1rem 1rem 3rem; }
  h1 { font-size: 1.55rem; }
  .pair, dl { grid-template-columns: 1fr; }
  dd { margin-bottom: .4rem; }
  figure { margin: 1.5rem 0 2rem; }
  th[scope="row"] { max-width: 9rem; }
}
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; }
  nav { display: none; }
  .scroll { overflow: visible; }
  table { font-size: 7.5pt; }
  th, td { padding: .2rem .35rem; white-space: normal; }
  pre { max-height: none; overflow: visible; }
  figure { grid-template-columns: 1fr; }
  figure img { max-width: 100%; width: auto; }
  figure, article, tr { break-inside: avoid; }
  h2, h3, caption { break-after: avoid; }
}
"""
