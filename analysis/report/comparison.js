// The section `compare`: two methods of a setup, from the counts of their checkpoints. The numbers
// are those of `trb table EXP --compare FIRST,SECOND` (analysis/table/compare.py), and
// tests/analysis/test_report.py compares the two.
"use strict";
(() => {
  const source = document.getElementById("comparison-data");
  if (!source) return;
  const given = JSON.parse(source.textContent);
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

  // --- scores, in per cent ---

  // The score of each problem, for each seed.
  const shares = (seeds) => seeds.map(({ correct, n }) =>
    correct.map((count, problem) => count / (Array.isArray(n) ? n[problem] : n)));

  // Column → a score for each seed; `avg` is the mean over benchmarks.
  const bySeed = (checkpoint) => {
    const columns = {};
    for (const [key, seeds] of Object.entries(checkpoint.counts)) {
      columns[key] = shares(seeds).map((problems) => 100 * mean(problems));
    }
    const benchmarks = Object.values(columns);
    return { avg: benchmarks[0].map((_, seed) => mean(benchmarks.map((column) => column[seed]))), ...columns };
  };

  // --- over seeds: Student's t with the variance of all methods of the setup ---

  const spreadOf = (checkpoints, key) => {
    let squares = 0, freedom = 0;
    for (const checkpoint of checkpoints) {
      const scores = bySeed(checkpoint)[key];
      for (const score of scores) squares += (score - mean(scores)) ** 2;
      freedom += scores.length - 1;
    }
    // Equal scores of all seeds would make every difference certain.
    return freedom === 0 || squares <= 1e-12 ? null : { deviation: Math.sqrt(squares / freedom), freedom };
  };

  // P(|T| < t) for whole degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4).
  const within = (t, freedom) => {
    const angle = Math.atan(t / Math.sqrt(freedom)), odd = freedom % 2;
    let term = odd ? Math.cos(angle) : 1, sum = freedom === 1 ? 0 : term;
    for (let k = odd + 2; k <= freedom - 2; k += 2) {
      term *= ((k - 1) / k) * Math.cos(angle) ** 2;
      sum += term;
    }
    return odd ? (2 / Math.PI) * (angle + Math.sin(angle) * sum) : Math.sin(angle) * sum;
  };

  // The t within which the confidence lies, by bisection.
  const bound = (freedom) => {
    let low = 0, high = 1e4;
    for (let i = 0; i < 100; i += 1) {
      const middle = (low + high) / 2;
      if (within(middle, freedom) < given.confidence) low = middle;
      else high = middle;
    }
    return low;
  };

  // --- over problems: the bootstrap of analysis/scores/uncertainty.py, on equal random numbers ---

  // NumPy's generator PCG64 from its state, as doubles in [0, 1); the command resamples with it.
  const doubles = ({ state, inc }) => {
    const multiplier = 47026247687942121848144207491837523525n;
    const increment = BigInt(inc);
    let now = BigInt(state);
    return () => {
      now = BigInt.asUintN(128, now * multiplier + increment);
      const mixed = BigInt.asUintN(64, (now >> 64n) ^ now), turn = now >> 122n;
      const turned = BigInt.asUintN(64, (mixed >> turn) | (mixed << (64n - turn)));
      return Number(turned >> 11n) / 9007199254740992;
    };
  };

  // NumPy's binomial by inversion, which it takes up to n p = 30; n p is about 1 here.
  const binomial = (next, n, p) => {
    if (n === 0) return 0;
    if (p > 0.5) return n - binomial(next, n, 1 - p);
    const q = 1 - p, first = Math.exp(n * Math.log1p(-p));
    const most = Math.min(n, Math.floor(n * p + 10 * Math.sqrt(n * p * q + 1)));
    let count = 0, chance = first, left = next();
    while (left > chance) {
      count += 1;
      if (count > most) {
        count = 0;
        chance = first;
        left = next();
      } else {
        left -= chance;
        chance = ((n - count + 1) * p * chance) / (count * q);
      }
    }
    return count;
  };

  // How often each of P problems is among P − 1 draws, replicate after replicate. It is NumPy's
  // multinomial: each problem takes a binomial number of the draws that are left.
  const drawn = new Map();
  const draws = (benchmark, problems) => {
    const name = `${benchmark.key} ${problems}`;
    if (drawn.has(name)) return drawn.get(name);
    const weights = new Uint8Array(given.replicates * problems);
    if (problems === 1) weights.fill(1);
    const next = doubles(benchmark.draws), share = 1 / problems;
    for (let start = 0; problems > 1 && start < weights.length; start += problems) {
      let left = problems - 1, probability = 1;
      for (let problem = 0; problem < problems - 1 && left > 0; problem += 1) {
        const count = binomial(next, left, share / probability);
        weights[start + problem] = count;
        left -= count;
        probability -= share;
      }
      if (left > 0) weights[start + problems - 1] = left;
    }
    drawn.set(name, weights);
    return weights;
  };

  // Replicates of a checkpoint's mean over problems, in per cent. If all problems score the same,
  // the page holds finished replicates as 32-bit floats.
  const replicates = (checkpoint, benchmark) => {
    const flat = checkpoint.flat[benchmark.key];
    if (flat) {
      const bytes = Uint8Array.from(atob(flat), (letter) => letter.charCodeAt(0));
      return Array.from(new Float32Array(bytes.buffer), (value) => 100 * value);
    }
    const seeds = shares(checkpoint.counts[benchmark.key]);
    const scores = seeds[0].map((_, problem) => mean(seeds.map((seed) => seed[problem])));
    const weights = draws(benchmark, scores.length), drawsOf = Math.max(1, scores.length - 1);
    const found = [];
    for (let start = 0; start < weights.length; start += scores.length) {
      let sum = 0;
      for (let problem = 0; problem < scores.length; problem += 1) sum += weights[start + problem] * scores[problem];
      found.push((100 * sum) / drawsOf);
    }
    return found;
  };

  // NumPy's quantile, linear between two values.
  const quantile = (sorted, share) => {
    const place = share * (sorted.length - 1), below = Math.floor(place);
    const above = Math.min(below + 1, sorted.length - 1);
    return sorted[below] + (place - below) * (sorted[above] - sorted[below]);
  };

  // --- two methods ---

  // The titles and labels of two methods, and a row for each benchmark: scores `first` and `second`,
  // their difference `value`, its interval from `low` to `high` over `over`, and `p` or null.
  const compare = (setup, first, second) => {
    const isConfirmed = first in setup.confirmed && second in setup.confirmed;
    const known = isConfirmed ? setup.confirmed : setup.selected;
    const pair = [known[first], known[second]];
    const scores = pair.map(bySeed);
    // The untrained student has no training run.
    const runs = [first, second].map((method, side) => (method === given.base ? 0 : scores[side].avg.length));
    const isTrained = first !== given.base && second !== given.base;
    // The best of more candidates leads by chance, so p needs choices among equally many.
    const tested = isConfirmed || !isTrained || pair[0].candidates === pair[1].candidates;
    const columns = [{ key: "avg", label: setup.average }, ...setup.benchmarks];
    const gaps = columns.map(({ key, label }) => {
      const means = scores.map((columns) => mean(columns[key]));
      const row = { key, label, first: means[0], second: means[1], value: means[0] - means[1], runs, tested, p: null };
      const spread = spreadOf(Object.values(known), key);
      if (spread && Math.min(...runs) >= 2) {
        const error = spread.deviation * Math.sqrt(1 / runs[0] + 1 / runs[1]);
        const reach = bound(spread.freedom) * error;
        const p = Math.max(0, 1 - within(Math.abs(row.value) / error, spread.freedom));
        return { ...row, over: "seeds", low: row.value - reach, high: row.value + reach, p: tested ? p : null };
      }
      const benchmarks = setup.benchmarks.filter((benchmark) => key === "avg" || benchmark.key === key);
      const sides = pair.map((checkpoint) => benchmarks.map((benchmark) => replicates(checkpoint, benchmark)));
      const found = sides[0][0].map((_, replicate) => {
        const [one, other] = sides.map((side) => mean(side.map((column) => column[replicate])));
        return one - other;
      }).sort((a, b) => a - b);
      const tail = (1 - given.confidence) / 2;
      const low = Math.min(quantile(found, tail), row.value), high = Math.max(quantile(found, 1 - tail), row.value);
      return { ...row, over: "problems", low, high };
    });
    return { titles: pair.map((each) => each.title), labels: pair.map((each) => each.label), isConfirmed, rows: gaps };
  };

  // --- words ---

  // One decimal, an exact half away from zero; sums of binary fractions miss a half by 1e-13.
  const tenths = (value) => {
    const rounded = Math.floor(Math.abs(value) * 10 + 0.5 + 1e-9) / 10;
    return (value < 0 && rounded ? "−" : "") + rounded.toFixed(1);
  };
  const signed = (value) => (value > 0 && tenths(value) !== "0.0" ? "+" : "") + tenths(value);
  const gapText = (row) => {
    if (row.over === "seeds") return signed(row.value);
    return `${signed(row.value)} (${["no seeds", "1 seed"][Math.min(...row.runs)] ?? "equal seeds"})`;
  };
  const limitsText = (row) =>
    `[${signed(row.low)}, ${signed(row.high)}]${row.over === "problems" ? given.words.problemsOnly : ""}`;
  const pText = (row) => {
    if (row.over === "seeds" && !row.tested) return given.words.unequal;
    if (row.p === null) return "";
    return row.p < 0.001 ? "< 0.001" : row.p.toFixed(3);
  };

  // --- the page ---

  const place = document.getElementById("comparison");
  const [setupChoice, setupLabel] = choice("Setup", given.setups.map((setup, index) => [index, setup.title]));
  const [firstChoice, firstLabel] = choice("First", []);
  const [secondChoice, secondLabel] = choice("Second", []);
  setupLabel.hidden = given.setups.length < 2;
  const result = make("div");
  result.setAttribute("aria-live", "polite");
  place.append(make("div", { className: "tools" }, setupLabel, firstLabel, secondLabel), result);

  const show = () => {
    const setup = given.setups[setupChoice.value];
    if (firstChoice.value === secondChoice.value) {
      result.replaceChildren(make("p", {}, "Choose two different methods."));
      return;
    }
    const found = compare(setup, firstChoice.value, secondChoice.value);
    const suffix = found.isConfirmed ? ", confirmed" : "";
    const { words } = given;
    const headings = ["Benchmark", ...found.labels, words.gap, words.limits];
    if (found.rows.some(pText)) headings.push(words.p);
    const head = headings.map((text, column) => make("th", { scope: "col", className: column ? "" : "text" }, text));
    const body = found.rows.map((row) => {
      const cells = [row.label, tenths(row.first), tenths(row.second), gapText(row), limitsText(row), pText(row)];
      const [name, ...others] = cells.slice(0, headings.length);
      return make("tr", {}, make("th", { scope: "row", className: "text" }, name),
        ...others.map((text) => make("td", {}, text)));
    });
    const notes = [];
    const overSeeds = found.rows.filter((row) => row.over === "seeds");
    if (overSeeds.length) {
      const few = overSeeds.some((row) => Math.min(...row.runs) < given.few) ? "; few seeds" : "";
      notes.push(words.overSeeds.replace("{few}", few));
    }
    if (overSeeds.length < found.rows.length) notes.push(words.overProblems);
    const table = make("table", {},
      make("caption", {}, found.titles.map((title) => title + suffix).join(" − ")),
      make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body));
    result.replaceChildren(scrolling("Comparison", table), make("p", { className: "note" }, notes.join(" ")));
    result.numbers = found.rows; // unrounded, for the test
  };

  const chooseSetup = () => {
    const { selected } = given.setups[setupChoice.value];
    const methods = Object.entries(selected);
    const [first, second] = given.pair.every((method) => method in selected)
      ? given.pair : methods.map(([method]) => method);
    for (const [choice, chosen] of [[firstChoice, first], [secondChoice, second]]) {
      choice.replaceChildren(...methods.map(([method, { label }]) =>
        make("option", { value: method, selected: method === chosen }, label)));
    }
    show();
  };
  setupChoice.addEventListener("change", chooseSetup);
  firstChoice.addEventListener("change", show);
  secondChoice.addEventListener("change", show);
  chooseSetup();
})();
