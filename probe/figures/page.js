const resize = () => window.dispatchEvent(new Event("resize"));
window.addEventListener("resize", () => {
  for (const part of document.querySelectorAll(".scroll, figure"))
    part.classList.toggle("wide", part.scrollWidth > part.clientWidth + 1);
});
window.addEventListener("load", resize);
for (const part of document.querySelectorAll("details")) part.addEventListener("toggle", resize);
