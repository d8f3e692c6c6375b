// The chart of the section `curves`: Plotly draws numbers that the page holds as JSON. Check boxes
// switch methods, and a slider lists the values at one step, so that no pointer is needed.
"use strict";
(async () => {
  const source = document.getElementById("curves-data");
  if (!source) return;
  const { quantities, setups } = JSON.parse(source.textContent);
  const place = document.getElementById("chart");

  // --- controls ---

  const [setupChoice, setupLabel] = choice("Setup", setups.map((setup, index) => [index, setup.title]));
  setupLabel.hidden = setups.length < 2;
  const [quantityChoice, quantityLabel] = choice("Quantity", []);
  const seedsBox = make("input", { type: "checkbox", checked: true });
  const minusBox = make("input", { type: "checkbox" });
  const all = make("button", { type: "button" }, "All methods");
  const none = make("button", { type: "button" }, "None");
  const methods = make("fieldset", { className: "methods" });
  const picture = make("div", { className: "chart" });
  const slider = make("input", { type: "range", min: 0 });
  const stepShown = make("output");
  const values = scrolling("Values at one step");
  place.append(
    make("div", { className: "tools" }, setupLabel, quantityLabel,
      make("label", {}, minusBox, " Minus Vanilla"), make("label", {}, seedsBox, " Single seeds"), all, none),
    methods,
    picture,
    make("div", { className: "tools" }, make("label", { className: "wide" }, "Step ", slider), stepShown),
    values,
  );

  // --- what is shown ---

  const off = new Set(); // methods that are switched off, in all setups
  let quantity, lines;
  const shown = () => lines.filter((line) => !off.has(line.method));
  // Differences have a sign, except for zero.
  const number = (value) => {
    const text = Math.abs(value).toFixed(quantity.decimals);
    if (!Number(text)) return text;
    if (value < 0) return `−${text}`;
    return minusBox.checked ? `+${text}` : text;
  };
  // The points of a line, or their differences to Vanilla's mean at the steps that both have. A
  // point without a value stays, since it breaks the line.
  const pointsOf = (line) => {
    const own = line.values[quantity.key];
    const vanilla = lines.find((each) => each.method === "vanilla");
    if (!minusBox.checked || !vanilla) return own;
    const means = new Map(vanilla.values[quantity.key].means);
    const minus = (points) => points
      .filter(([step, value]) => value === null || (means.get(step) ?? null) !== null)
      .map(([step, value, last]) => [step, value === null ? null : value - means.get(step), last]);
    return { means: minus(own.means), seeds: minus(own.seeds) };
  };
  const name = (line) => `${line.label} ${line.setting}`.trim();

  const chooseSetup = () => {
    const own = setups[setupChoice.value].lines;
    const before = quantity?.key;
    const known = quantities.filter((each) => own.some((line) => each.key in line.values));
    quantityChoice.replaceChildren(
      ...known.map((each) => make("option", { value: each.key, selected: each.key === before }, each.title)),
    );
    chooseQuantity();
  };

  const chooseQuantity = () => {
    quantity = quantities.find((each) => each.key === quantityChoice.value);
    lines = setups[setupChoice.value].lines.filter((line) => quantity.key in line.values);
    methods.replaceChildren(make("legend", {}, "Methods"));
    for (const line of lines) {
      const box = make("input", { type: "checkbox", checked: !off.has(line.method) });
      box.addEventListener("change", () => {
        if (box.checked) off.delete(line.method);
        else off.add(line.method);
        draw();
      });
      const sign = make("span", { ariaHidden: "true" }, line.sign);
      sign.style.color = line.color;
      methods.append(make("label", {}, box, sign, name(line)));
    }
    const hasSeeds = lines.some((line) => line.values[quantity.key].seeds.length);
    seedsBox.parentElement.hidden = !hasSeeds;
    minusBox.parentElement.hidden = !lines.some((line) => line.method === "vanilla");
    draw();
  };

  const traces = () => {
    const found = [];
    for (const line of shown()) {
      const { means, seeds } = pointsOf(line);
      const common = { type: "scatter", hoverinfo: "text", showlegend: false, name: name(line) };
      if (seedsBox.checked) {
        found.push({
          ...common,
          mode: "markers",
          x: seeds.map((point) => point[0]),
          y: seeds.map((point) => point[1]),
          text: seeds.map(([step, value, seed]) => `${name(line)}<br>seed ${seed}, step ${step}: ${number(value)}`),
          marker: { color: line.color, symbol: line.symbol, size: 5, opacity: 0.45 },
        });
      }
      found.push({
        ...common,
        mode: means.length > 60 ? "lines" : "lines+markers",
        x: means.map((point) => point[0]),
        y: means.map((point) => point[1]),
        text: means.map(([step, value, count]) =>
          value === null ? "" : `${name(line)}<br>${over(count)}, step ${step}: ${number(value)}`),
        line: { color: line.color, width: 2 },
        marker: { color: line.color, symbol: line.symbol, size: 8 },
        connectgaps: false,
      });
    }
    return found;
  };
  const title = () => quantity.title + (minusBox.checked ? ", minus Vanilla" : "");
  const over = (count) => (count === 1 ? "one run" : `mean of ${count} seeds`);

  const listValues = (steps) => {
    const step = steps[slider.value];
    stepShown.value = step === undefined ? "" : step;
    const rows = [];
    for (const line of shown()) {
      const { means, seeds } = pointsOf(line);
      const point = means.find((each) => each[0] === step);
      if (!point || point[1] === null) continue;
      const single = seeds.filter((each) => each[0] === step).map((each) => `${each[2]}:\u00a0${number(each[1])}`);
      rows.push({ mean: point[1], cells: [name(line), number(point[1]), String(point[2]), single.join(", ")] });
    }
    rows.sort((a, b) => b.mean - a.mean);
    const headings = ["Method", "Mean", "Runs"];
    if (!seedsBox.parentElement.hidden && seedsBox.checked) headings.push("By seed");
    const head = make("tr", {}, ...headings.map((text, place) => {
      const heading = make("th", { scope: "col" }, text);
      if (place === 0 || place === 3) heading.className = "text";
      return heading;
    }));
    const body = rows.map(({ cells }) => make("tr", {}, ...headings.map((_, place) => {
      if (place === 0) return make("th", { scope: "row", className: "text" }, cells[0]);
      return make("td", { className: place === 3 ? "text" : "" }, cells[place]);
    })));
    values.replaceChildren(make("table", {},
      make("caption", {}, `${title()} at step ${step ?? "–"}`),
      make("thead", {}, head), make("tbody", {}, ...body)));
  };

  let steps = [];
  const draw = () => {
    const before = steps[slider.value];
    const found = new Set(shown().flatMap((line) => pointsOf(line).means.map((point) => point[0])));
    steps = [...found].sort((a, b) => a - b);
    slider.max = Math.max(0, steps.length - 1);
    slider.value = steps.includes(before) ? steps.indexOf(before) : steps.length - 1;
    listValues(steps);
    const narrow = picture.clientWidth < 600;
    const axis = { gridcolor: "#d5dde5", zerolinecolor: "#d5dde5", linecolor: "#51606f", ticks: "outside", automargin: true };
    window.Plotly.react(picture, traces(), {
      height: narrow ? 320 : 440,
      margin: { l: 8, r: 12, t: 12, b: 8 },
      font: { family: getComputedStyle(document.body).fontFamily, color: "#1b2733", size: narrow ? 12 : 14 },
      paper_bgcolor: "#fff",
      plot_bgcolor: "#fff",
      hovermode: "closest",
      hoverlabel: { bgcolor: "#fff", font: { color: "#1b2733" }, align: "left" },
      // A drag scrolls the page where the pointer is a finger.
      dragmode: matchMedia("(pointer: fine)").matches ? "zoom" : false,
      xaxis: { ...axis, title: { text: "optimizer step" } },
      yaxis: { ...axis, title: { text: title() } },
    }, { displayModeBar: false, responsive: true, showTips: false });
  };

  const switchAll = (on) => {
    for (const line of lines) {
      if (on) off.delete(line.method);
      else off.add(line.method);
    }
    for (const box of methods.querySelectorAll("input")) box.checked = on;
    draw();
  };

  // --- Plotly, which lies compressed in the page ---

  try {
    const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (letter) => letter.charCodeAt(0));
    const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    document.head.append(make("script", { textContent: await new Response(unpacked).text() }));
    if (!window.Plotly) throw new Error("Plotly did not start");
  } catch (error) {
    place.replaceChildren(make("p", {}, `This browser cannot draw the chart (${error.message}); the figures show the same.`));
    return;
  }
  setupChoice.addEventListener("change", chooseSetup);
  quantityChoice.addEventListener("change", chooseQuantity);
  seedsBox.addEventListener("change", draw);
  minusBox.addEventListener("change", draw);
  slider.addEventListener("input", () => listValues(steps));
  all.addEventListener("click", () => switchAll(true));
  none.addEventListener("click", () => switchAll(false));
  chooseSetup();
  picture.dataset.drawn = "yes";
})();
