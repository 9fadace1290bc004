// Makes the columns of every table sort. Without it the tables are as readable, in their first order.
"use strict";
for (const table of document.querySelectorAll("table")) {
  const headings = [...table.tHead.rows[0].cells];
  // A line is a row. On a board it is a body: a row of values, and one that opens to the rest.
  const lines = () => [...(table.classList.contains("board") ? table.tBodies : table.tBodies[0].rows)];
  const value = (line, column) => {
    const cell = (line.rows ? line.rows[0] : line).cells[column];
    return cell.dataset.sort === undefined ? cell.textContent.trim() : cell.dataset.sort;
  };
  const compare = (a, b) => {
    const [x, y] = [Number(a), Number(b)];
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b, "en", { numeric: true }) : x - y;
  };
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const down = heading.getAttribute("aria-sort") === "ascending";
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      const sorted = lines().sort((first, second) => {
        const [a, b] = [value(first, column), value(second, column)];
        // What is undefined stays last, whichever way the column is sorted.
        if (a === "" || b === "") return (a === "") - (b === "");
        return down ? compare(b, a) : compare(a, b);
      });
      sorted[0]?.parentNode.append(...sorted);
    });
  });
}
