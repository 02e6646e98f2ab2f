// A click on a table's head sorts its rows by that column, as numbers where they begin with one.
document.addEventListener("click", (event) => {
  const head = event.target.closest("th");
  if (!head) return;
  const body = head.closest("table").tBodies[0];
  const column = head.cellIndex;
  const down = head.dataset.down !== "true";
  const value = (row) => {
    const text = row.cells[column]?.innerText.trim() ?? "";
    const number = parseFloat(text.replace(/^[−+]/, (sign) => (sign === "−" ? "-" : "")));
    return Number.isNaN(number) ? text : number;
  };
  const order = (a, b) => (typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1);
  [...body.rows].sort((a, b) => (down ? 1 : -1) * order(value(a), value(b))).forEach((row) => body.append(row));
  head.dataset.down = down;
});
