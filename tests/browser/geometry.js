// What is wrong with a page's layout, and how tall its text is (pixels).
() => {
  const shown = e => e.checkVisibility() && e.innerText?.trim();
  const scrolls = e => e && (/auto|scroll/.test(getComputedStyle(e).overflowX) || scrolls(e.parentElement));
  const said = (what, e) => `${what}: ${e.tagName} ${e.innerText?.trim().slice(0, 40) ?? e.textContent}`;
  const faults = [];
  for (const e of document.querySelectorAll("td, th, caption, dt, dd, li, p, figcaption, h1, h2, summary")) {
    if (!shown(e)) continue;
    const box = e.getBoundingClientRect(), range = document.createRange(), text = e.innerText.trim();
    range.selectNodeContents(e);
    const parts = [...range.getClientRects()].filter(part => part.width && part.height);
    if (parts.some(part => part.right > box.right + 1 || part.left < box.left - 1)) faults.push(said("over its column", e));
    const lines = new Set(parts.map(part => Math.round(part.bottom))).size;
    if (lines > 3 && text.length < 8 * lines) faults.push(said("a few letters a line", e));
    if (box.right > innerWidth + 1 && !scrolls(e)) faults.push(said("off the page", e));
  }
  for (const row of document.querySelectorAll("tr")) {
    const cells = [...row.children].filter(shown).map(cell => cell.getBoundingClientRect());
    const apart = (a, b) => a.right <= b.left + 1 || b.right <= a.left + 1 || a.bottom <= b.top + 1 || b.bottom <= a.top + 1;
    if (cells.some((a, i) => cells.slice(i + 1).some(b => !apart(a, b)))) faults.push(said("cells overlap", row));
  }
  for (const e of document.querySelectorAll(".js-plotly-plot .infolayer text, .js-plotly-plot .annotation-text")) {
    const box = e.getBoundingClientRect(), room = e.closest("svg").getBoundingClientRect();
    if (box.width && (box.left < room.left - 1 || box.right > room.right + 1 || box.bottom > room.bottom + 1))
      faults.push(said("cut", e));
  }
  const height = all => [...all].filter(e => e.checkVisibility()).reduce((sum, e) => sum + e.offsetHeight, 0);
  return {
    faults, overflow: document.documentElement.scrollWidth - innerWidth,
    height: document.documentElement.scrollHeight - height(document.querySelectorAll("figure, body > .js-plotly-plot, pre")),
    letters: document.body.innerText.length, blocks: document.querySelectorAll("p, tr, dd, dt, li, h1, h2, summary").length,
  };
}
