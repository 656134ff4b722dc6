// Tables in a block of the class "sortable" sort by the column whose head is clicked, or chosen
// with Enter; those that are also "filterable" get a field that hides lines without its words.

// The number that a cell begins with, once brackets and signs are read; otherwise its text.
function sortKey(cell) {
  const text = cell.textContent.trim();
  const number = text.replace(",", "").match(/^[+-]?\d+(\.\d+)?/);
  return number ? Number(number[0]) : text.toLowerCase();
}

function compared(one, other) {
  if (typeof one === typeof other) {
    return one < other ? -1 : Number(one > other);
  }
  return typeof one === "number" ? -1 : 1;
}

function sortBy(table, column, head) {
  const down = head.getAttribute("aria-sort") === "ascending";
  for (const each of table.tHead.rows[0].cells) {
    each.removeAttribute("aria-sort");
  }
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const lines = [...table.tBodies[0].rows].map((row) => [sortKey(row.cells[column]), row]);
  lines.sort((one, other) => {
    // Empty cells stay last.
    const empty = Number(one[0] === "") - Number(other[0] === "");
    return empty || (down ? -1 : 1) * compared(one[0], other[0]);
  });
  table.tBodies[0].append(...lines.map(([, row]) => row));
}

function makeSortable(table) {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    head.tabIndex = 0;
    head.setAttribute("role", "columnheader");
    head.addEventListener("click", () => sortBy(table, column, head));
    head.addEventListener("keydown", (event) => {
      if (event.key === "Enter") {
        sortBy(table, column, head);
      }
    });
  });
}

function makeFilterable(block, table) {
  const field = document.createElement("input");
  field.type = "search";
  field.placeholder = "Show only lines with these words, as in: UniLoss F1 win";
  field.setAttribute("aria-label", "Filter the table");
  const count = document.createElement("p");
  count.className = "count";
  const rows = [...table.tBodies[0].rows].map((row) => [row.textContent.toLowerCase(), row]);
  const filter = () => {
    const words = field.value.toLowerCase().split(/\s+/);
    for (const [text, row] of rows) {
      row.hidden = !words.every((word) => text.includes(word));
    }
    count.textContent = `${rows.filter(([, row]) => !row.hidden).length} of ${rows.length} lines`;
  };
  field.addEventListener("input", filter);
  block.prepend(field, count);
  filter();
}

for (const block of document.querySelectorAll(".sortable")) {
  const table = block.querySelector("table");
  makeSortable(table);
  if (block.classList.contains("filterable")) {
    makeFilterable(block, table);
  }
}
