// Tables of the class `sortable`: a click on a heading sorts by its column, and a field above the
// table keeps the rows that hold every word typed. Without this script they are plain tables.
"use strict";
document.documentElement.classList.add("scripted");

for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const headings = [...table.tHead.rows[0].cells];
  const texts = new Intl.Collator("en", { numeric: true });

  // A missing value is null: an empty cell says so with an <abbr>.
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
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
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

  const field = document.createElement("input");
  field.type = "search";
  field.placeholder = "words in a row, such as vanilla done";
  const label = document.createElement("label");
  label.append("Filter ", field);
  const count = document.createElement("output");
  const tools = document.createElement("div");
  tools.className = "tools live";
  tools.append(label, count);
  table.closest(".scroll").before(tools);
  const filter = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      if (!row.hidden) shown += 1;
    }
    count.value = `${shown} of ${rows.length} rows`;
  };
  field.addEventListener("input", filter);
  filter();
}
