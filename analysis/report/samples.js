// Groups of responses: they are closed until someone opens them, and open on paper. Above the
// section `samples` stand choices of a method and a benchmark, and a field for words.
"use strict";
(() => {
  const groups = [...document.querySelectorAll("details")];
  for (const group of groups) group.open = false;
  let before = [];
  addEventListener("beforeprint", () => {
    before = groups.map((group) => group.open);
    for (const group of groups) group.open = true;
  });
  addEventListener("afterprint", () => groups.forEach((group, place) => { group.open = before[place]; }));

  const section = document.getElementById("samples");
  const articles = section ? [...section.querySelectorAll("article")] : [];
  if (!articles.length) return;
  const make = (name, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  };
  // Names as the sides of the articles and their titles have them.
  const choice = (label, keys, names) => {
    const select = make("select", {}, make("option", { value: "" }, "all"));
    for (const key of new Set(keys)) select.append(make("option", { value: key }, names[key] ?? key));
    return [select, make("label", {}, `${label} `, select)];
  };
  const names = JSON.parse(document.getElementById("samples-data").textContent);
  const [method, methodLabel] = choice("Method", articles.flatMap((each) => each.dataset.methods.split(" ")), names);
  const [benchmark, benchmarkLabel] = choice("Benchmark", articles.map((each) => each.dataset.benchmark), names);
  const field = make("input", { type: "search", placeholder: "words in prompt or response" });
  const count = make("output");
  const tools = make("div", { className: "tools live" },
    methodLabel, benchmarkLabel, make("label", {}, "Filter ", field), count);
  section.querySelector(".samples").before(tools);

  const filter = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const article of articles) {
      const text = article.textContent.toLowerCase();
      const isOf = !method.value || article.dataset.methods.split(" ").includes(method.value);
      const isOn = !benchmark.value || article.dataset.benchmark === benchmark.value;
      article.hidden = !(isOf && isOn && words.every((word) => text.includes(word)));
      if (!article.hidden) shown += 1;
    }
    for (const group of section.querySelectorAll("details")) {
      group.hidden = ![...group.querySelectorAll("article")].some((article) => !article.hidden);
    }
    count.value = `${shown} of ${articles.length} responses`;
  };
  for (const control of [method, benchmark, field]) control.addEventListener("input", filter);
  filter();
})();
