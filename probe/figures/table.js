{
  const measure = part => part.classList.toggle("wide", part.scrollWidth > part.clientWidth + 1);
  const watch = new ResizeObserver(entries => entries.forEach(entry => measure(entry.target.closest(".scroll, figure"))));
  for (const part of document.querySelectorAll(".scroll, figure"))
    for (const seen of [part, ...part.querySelectorAll("table, .js-plotly-plot, .main-svg")]) watch.observe(seen);
}
