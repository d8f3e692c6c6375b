// The section `compare`: shows two methods of a setup. The page holds every comparison as texts.
"use strict";
(() => {
  const source = document.getElementById("comparison-data");
  if (!source) return;
  const { pair, setups } = JSON.parse(source.textContent);
  const [setupChoice, setupLabel] = choice("Setup", setups.map((setup, index) => [index, setup.title]));
  const [oneChoice, oneLabel] = choice("Compare", []);
  const [otherChoice, otherLabel] = choice("with", []);
  setupLabel.hidden = setups.length < 2;
  const result = make("div");
  result.setAttribute("aria-live", "polite");
  const tools = make("div", { className: "tools" }, setupLabel, oneLabel, otherLabel);
  document.getElementById("comparison").append(tools, result);

  const show = () => {
    const { pairs } = setups[setupChoice.value], one = oneChoice.value, other = otherChoice.value;
    const found = pairs[`${one},${other}`] ?? pairs[`${other},${one}`];
    if (!found) {
      result.replaceChildren(make("p", {}, "Choose two different methods."));
      return;
    }
    const [headings, ...rows] = found.rows;
    const head = headings.map((text, column) => make("th", { scope: "col", className: column ? "" : "text" }, text));
    const body = rows.map(([name, ...cells]) => make("tr", {},
      make("th", { scope: "row", className: "text" }, name), ...cells.map((text) => make("td", {}, text))));
    const table = make("table", {}, make("caption", {}, found.title),
      make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body));
    result.replaceChildren(scrolling("Comparison", table), make("p", { className: "note" }, found.note));
  };

  const chooseSetup = () => {
    const { methods } = setups[setupChoice.value];
    const chosen = pair.every((method) => method in methods) ? pair : Object.keys(methods);
    for (const [index, select] of [oneChoice, otherChoice].entries()) {
      select.replaceChildren(...Object.entries(methods).map(([value, label]) =>
        make("option", { value, selected: value === chosen[index] }, label)));
    }
    show();
  };
  setupChoice.addEventListener("change", chooseSetup);
  oneChoice.addEventListener("change", show);
  otherChoice.addEventListener("change", show);
  chooseSetup();
})();
