"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = row => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
    const rows = [...table.tBodies[0].rows];
    rows.sort((a, b) => {
      const x = key(a), y = key(b);
      if ((x === "") !== (y === "")) return x === "" ? 1 : -1;  // Empty cells come last in both directions.
      const order = x !== "" && !isNaN(x) && !isNaN(y) ? x - y : x.localeCompare(y, "en", {numeric: true});
      return down ? -order : order;
    });
    table.tBodies[0].append(...rows);
  }));
}
document.getElementById("filter").addEventListener("input", event => {
  const words = event.target.value.toLowerCase().split(/\s+/);
  for (const row of document.getElementById("all").tBodies[0].rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every(word => text.includes(word));
  }
});
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
