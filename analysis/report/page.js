// What the page can do where scripts run: sort and filter tables, choose two methods, filter
// responses, and draw curves. Without this script it has the same tables, figures and texts.
"use strict";
document.documentElement.classList.add("scripted");

const make = (name, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
};

// Whether the text of an element has every word that a field holds, in any case and order.
const hasWords = (element, field) => {
  const text = element.textContent.toLowerCase();
  return field.value.toLowerCase().split(/\s+/).every((word) => text.includes(word));
};

// --- paper shows what is folded ---

let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  for (const each of folded) each.open = true;
});
addEventListener("afterprint", () => folded.forEach((each) => { each.open = false; }));

// --- tables of the class `sortable`: a click on a heading sorts, a field keeps rows with its words ---

for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0], rows = [...body.rows], headings = [...table.tHead.rows[0].cells];
  const texts = new Intl.Collator("en", { numeric: true });
  // A missing value, whose cell holds an <abbr>, is null and comes last in both directions.
  const value = (row, column) => {
    const cell = row.cells[column];
    return cell.querySelector("abbr") ? null : cell.textContent.trim().replaceAll(",", "");
  };
  headings.forEach((heading, column) => {
    const button = make("button", { type: "button" }, ...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      // Numbers begin with the highest, texts with the first letter.
      const isText = heading.classList.contains("text"), before = heading.ariaSort;
      const descending = before ? before === "ascending" : !isText;
      for (const each of headings) each.ariaSort = null;
      heading.ariaSort = descending ? "descending" : "ascending";
      const compare = (a, b) => (isText ? texts.compare(a, b) : a - b) * (descending ? -1 : 1);
      const keyed = rows.map((row) => [value(row, column), row]);
      keyed.sort(([a], [b]) => (a === null || b === null ? (a === null) - (b === null) : compare(a, b)));
      body.append(...keyed.map(([, row]) => row));
    });
  });
  const field = make("input", { type: "search", placeholder: "words in a row, such as vanilla done" });
  const count = make("output");
  table.closest(".scroll").before(make("div", { className: "tools" }, make("label", {}, "Filter ", field), count));
  const filter = () => {
    for (const row of rows) row.hidden = !hasWords(row, field);
    count.value = `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`;
  };
  field.addEventListener("input", filter);
  filter();
}

// --- two methods: the page has a table for every pair ---

for (const box of document.querySelectorAll(".pairs")) {
  const [one, other] = box.querySelectorAll("select");
  const show = () => {
    for (const pair of box.querySelectorAll("[data-pair]")) {
      const methods = pair.dataset.pair.split(" ");
      pair.hidden = one.value === other.value || !methods.includes(one.value) || !methods.includes(other.value);
    }
  };
  box.addEventListener("change", show);
  show();
}

// --- responses ---

const samples = document.getElementById("samples");
if (samples.querySelector("article")) {
  const [method, benchmark, field] = samples.querySelectorAll("select, input");
  const articles = [...samples.querySelectorAll("article")];
  const filter = () => {
    for (const article of articles) {
      const isOf = !method.value || article.dataset.methods.split(" ").includes(method.value);
      const isOn = !benchmark.value || article.dataset.benchmark === benchmark.value;
      article.hidden = !(isOf && isOn && hasWords(article, field));
    }
    for (const group of samples.querySelectorAll("details")) {
      group.hidden = !group.querySelector("article:not([hidden])");
    }
    const shown = articles.filter((article) => !article.hidden).length;
    samples.querySelector("output").value = `${shown} of ${articles.length} responses`;
  };
  samples.addEventListener("input", filter);
  filter();
}

// --- curves, by Plotly, which lies compressed in the page ---

const drawCurves = async (place) => {
  const { quantities, setups } = JSON.parse(document.getElementById("curves-data").textContent);
  const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (letter) => letter.charCodeAt(0));
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  document.head.append(make("script", { textContent: await new Response(unpacked).text() }));
  const options = (own) => own.map(([value, text]) => make("option", { value }, text));
  const setup = make("select", {}, ...options(setups.map((own, index) => [index, own.title])));
  const quantity = make("select");
  const minus = make("input", { type: "checkbox" });
  const picture = make("div", { className: "chart" });
  place.append(
    make("div", { className: "tools" }, make("label", { hidden: setups.length < 2 }, "Setup ", setup),
      make("label", {}, "Quantity ", quantity), make("label", {}, minus, " Minus Vanilla")),
    picture,
  );
  const draw = () => {
    const { key, title, decimals } = quantities.find((own) => own.key === quantity.value);
    const lines = setups[setup.value].lines.filter((line) => key in line.values);
    const vanilla = lines.find((line) => line.method === "vanilla");
    minus.parentElement.hidden = !vanilla;
    const isMinus = minus.checked && vanilla;
    // Steps that Vanilla lacks have no difference; a point without a value breaks the line.
    const base = new Map(isMinus ? vanilla.values[key].means : []);
    const height = ([step, value]) => (value === null || (isMinus && base.get(step) == null) ? null : value - (base.get(step) ?? 0));
    const trace = (line, points, words) => ({
      type: "scatter", hoverinfo: "text", name: line.name, legendgroup: line.method,
      x: points.map(([step]) => step), y: points.map(height),
      text: points.map((point) => `${line.name}<br>${words(point[2])}, step ${point[0]}: ${height(point)?.toFixed(decimals).replace("-", "−")}`),
      line: { color: line.color, width: 2 }, marker: { color: line.color, symbol: line.symbol, size: 8 },
    });
    const traces = lines.flatMap((line) => {
      const { means, seeds } = line.values[key], one = trace(line, seeds, (seed) => `seed ${seed}`);
      const mean = trace(line, means, (count) => (count === 1 ? "one run" : `mean of ${count} seeds`));
      return [
        { ...one, mode: "markers", showlegend: false, marker: { ...one.marker, size: 5, opacity: 0.45 } },
        { ...mean, mode: means.length > 60 ? "lines" : "lines+markers" },
      ];
    });
    const axis = { gridcolor: "#d5dde5", zerolinecolor: "#d5dde5", linecolor: "#51606f", automargin: true };
    window.Plotly.react(picture, traces, {
      height: 440, margin: { l: 8, r: 12, t: 12, b: 8 }, hovermode: "closest",
      font: { family: getComputedStyle(document.body).fontFamily, color: "#1b2733", size: 13 },
      legend: { orientation: "h", y: -0.2 },
      // A drag scrolls the page where the pointer is a finger.
      dragmode: matchMedia("(pointer: fine)").matches ? "zoom" : false,
      xaxis: { ...axis, title: { text: "optimizer step" } },
      yaxis: { ...axis, title: { text: title + (isMinus ? ", minus Vanilla" : "") } },
    }, { displayModeBar: false, responsive: true, showTips: false });
  };
  const choose = () => {
    const known = quantities.filter(({ key }) => setups[setup.value].lines.some((line) => key in line.values));
    quantity.replaceChildren(...options(known.map((own) => [own.key, own.title])));
    draw();
  };
  setup.addEventListener("change", choose);
  quantity.addEventListener("change", draw);
  minus.addEventListener("change", draw);
  choose();
  picture.dataset.drawn = "yes";
};
const chart = document.getElementById("chart");
if (chart) drawCurves(chart).catch((error) => chart.replaceChildren(`This browser cannot draw the chart (${error.message}).`));
