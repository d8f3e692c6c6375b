// Groups of responses: closed until a reader opens them, and open on paper. The section `samples`
// is filtered by a method, a benchmark and words.
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
  // Keys of methods and benchmarks by the names that the articles show.
  const names = JSON.parse(document.getElementById("samples-data").textContent);
  const options = (keys) => [["", "all"], ...[...new Set(keys)].map((key) => [key, names[key] ?? key])];
  const methodsOf = (article) => article.dataset.methods.split(" ");
  const [method, methodLabel] = choice("Method", options(articles.flatMap(methodsOf)));
  const [benchmark, benchmarkLabel] = choice("Benchmark", options(articles.map((each) => each.dataset.benchmark)));
  const field = make("input", { type: "search", placeholder: "words in prompt or response" });
  const count = make("output");
  const tools = make("div", { className: "tools live" },
    methodLabel, benchmarkLabel, make("label", {}, "Filter ", field), count);
  section.querySelector(".samples").before(tools);

  const filter = () => {
    let shown = 0;
    for (const article of articles) {
      const isOf = !method.value || methodsOf(article).includes(method.value);
      const isOn = !benchmark.value || article.dataset.benchmark === benchmark.value;
      article.hidden = !(isOf && isOn && hasWords(article, field));
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
