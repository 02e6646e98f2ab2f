// What keeps a page from being read: texts of low contrast (WCAG 2: 4.5:1, large ones 3:1), headings that skip a
// level, parts that scroll and take no focus, labels of regions that are not their own.
() => {
  const parse = text => { const parts = text.match(/[\d.]+/g).map(Number); return [...parts.slice(0, 3), parts[3] ?? 1]; };
  const over = ([r, g, b, a], ground) => [r, g, b].map((part, i) => part * a + ground[i] * (1 - a));
  const luminance = rgb => rgb.map(part => part / 255).map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, i) => sum + part * [0.2126, 0.7152, 0.0722][i], 0);
  const ratio = (a, b) => { const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y); return (high + 0.05) / (low + 0.05); };
  const line = e => e ? [...line(e.parentElement), e] : [];
  const page = matchMedia("(prefers-color-scheme: dark)").matches ? [20, 20, 20] : [255, 255, 255];
  const shown = e => e.checkVisibility({ opacityProperty: true, visibilityProperty: true }) && e.getClientRects().length;
  const said = (what, e) => `${what}: ${e.outerHTML.slice(0, 120)}`;
  const faults = [];
  for (const e of document.querySelectorAll("body *")) {
    const text = [...e.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    if (!text || !shown(e) || e.closest("svg, canvas, script, style, template, [data-testid=stIconMaterial], [data-testid=stSliderThumbValue]")) continue;  // a slider's value stands above its thumb
    const style = getComputedStyle(e), above = line(e);
    const ground = above.reduce((rgb, part) => over(parse(getComputedStyle(part).backgroundColor), rgb), page);
    const opacity = above.reduce((product, part) => product * getComputedStyle(part).opacity, 1);
    const [r, g, b, a] = parse(style.color), size = parseFloat(style.fontSize);
    const found = ratio(over([r, g, b, a * opacity], ground), ground);
    const least = size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5;
    if (found < least) faults.push(said(`contrast ${found.toFixed(2)}`, e));
  }
  let level = 0;
  for (const e of [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")].filter(shown)) {
    const own = Number(e.tagName[1]);
    if (own > level + 1) faults.push(said(`h${own} after h${level}`, e));
    level = own;
  }
  const focusable = "a[href], button, input, select, textarea, summary, [tabindex='0']";
  for (const e of document.querySelectorAll("body *")) {
    const style = getComputedStyle(e);
    const scrolls = (/auto|scroll/.test(style.overflowX) && e.scrollWidth > e.clientWidth + 1)
      || (/auto|scroll/.test(style.overflowY) && e.scrollHeight > e.clientHeight + 1);
    if (scrolls && shown(e) && !e.matches(focusable) && !e.querySelector(focusable)) faults.push(said("scrolls, takes no focus", e));
  }
  const names = [...document.querySelectorAll("[role=region][aria-label]")].filter(shown).map(e => e.ariaLabel);
  for (const name of new Set(names)) if (names.filter(other => other === name).length > 1) faults.push(`regions: ${name}`);
  return faults;
}
