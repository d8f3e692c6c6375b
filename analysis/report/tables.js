// Tables of the class `sortable`: a click on a heading sorts by its column, and a field above the
// table keeps the rows that hold every word typed. Without this script they are plain tables.
"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const headings = [...table.tHead.rows[0].cells];
  const texts = new Intl.Collator("en", { numeric: true });

  // The value that a row is sorted by, null where it is missing: such a cell holds an <abbr>.
  const value = (row, column, isText) => {
    const cell = row.cells[column];
    if (cell.querySelector("abbr")) return null;
    const text = cell.textContent.trim();
    return isText ? text : Number(text.replaceAll(",", "").replace("−", "-"));
  };

  const sort = (column, descending) => {
    const isText = headings[column].classList.contains("text");
    const sorted = rows.map((row) => ({ row, key: value(row, column, isText) }));
    sorted.sort((a, b) => {
      // Rows without the value come last in both directions.
      if (a.key === null || b.key === null) return (a.key === null) - (b.key === null);
      const order = isText ? texts.compare(a.key, b.key) : a.key - b.key;
      return descending ? -order : order;
    });
    body.append(...sorted.map((each) => each.row));
  };

  headings.forEach((heading, column) => {
    const button = make("button", { type: "button" }, ...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      // Numbers begin with the highest, texts with the first letter.
      const before = heading.getAttribute("aria-sort");
      const isText = heading.classList.contains("text");
      const descending = before ? before === "ascending" : !isText;
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
      sort(column, descending);
    });
  });

  const field = make("input", { type: "search", placeholder: "words in a row, such as vanilla done" });
  const count = make("output");
  const tools = make("div", { className: "tools live" }, make("label", {}, "Filter ", field), count);
  table.closest(".scroll").before(tools);
  const filter = () => {
    let shown = 0;
    for (const row of rows) {
      row.hidden = !hasWords(row, field);
      if (!row.hidden) shown += 1;
    }
    count.value = `${shown} of ${rows.length} rows`;
  };
  field.addEventListener("input", filter);
  filter();
}
