const resize = () => window.dispatchEvent(new Event("resize"));
window.addEventListener("load", resize);
for (const part of document.querySelectorAll("details")) part.addEventListener("toggle", resize);
