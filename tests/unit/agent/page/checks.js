"use strict";
// What is wrong with a page for those who see little, hear it read, or have no mouse.

/** Texts with less contrast than WCAG 2.2 asks for in 1.4.3 (relative luminance as there). */
function contrasts() {
  const channel = (value) => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const numbers = (text) => text.match(/[\d.]+/g).map(Number);
  const light = ([r, g, b]) => 0.2126 * channel(r / 255) + 0.7152 * channel(g / 255) + 0.0722 * channel(b / 255);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const found = numbers(getComputedStyle(node).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((each) => each.nodeType === 3 && each.data.trim());
    if (!own || !node.checkVisibility() || ["SCRIPT", "STYLE", "NOSCRIPT"].includes(node.tagName)) continue;
    const [one, two] = [light(numbers(getComputedStyle(node).color)), light(behind(node))];
    const ratio = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
    if (ratio < 4.5) poor.push(`${node.tagName} ${node.className} ${ratio.toFixed(2)}: ${node.textContent.slice(0, 40)}`);
  }
  return poor;
}

/** What can be reached or seen, and has no name. */
function nameless() {
  return [...document.querySelectorAll("button, select, a, summary, [role=slider], [role=img], [role=region], section")]
    .filter((node) => node.checkVisibility())
    .filter((node) => !(node.getAttribute("aria-label") || node.textContent.trim()
      || node.labels?.length
      || document.getElementById(node.getAttribute("aria-labelledby"))?.textContent.trim()))
    .map((node) => node.outerHTML.slice(0, 80));
}

/** What is out of order in the document. */
function structure() {
  return [
    ...[...document.querySelectorAll("[id]")].map((node) => node.id)
      .filter((id, at, all) => all.indexOf(id) !== at).map((id) => `twice: ${id}`),
    ...[...document.querySelectorAll("th")].filter((node) => !node.scope).map(() => "th without scope"),
    ...[...document.querySelectorAll("[aria-labelledby], [aria-describedby]")]
      .filter((node) => !document.getElementById(node.getAttribute("aria-labelledby") || node.getAttribute("aria-describedby")))
      .map((node) => `points nowhere: ${node.id}`),
    ...[...document.querySelectorAll("[tabindex]")].filter((node) => node.tabIndex > 0).map(() => "tabindex above 0"),
    ...(document.documentElement.lang ? [] : ["no language"]),
    ...(document.querySelectorAll("h1").length === 1 ? [] : ["not one h1"]),
    ...(document.querySelectorAll("main").length === 1 ? [] : ["not one main"]),
    ...[...document.querySelectorAll("h1, h2, h3, h4")].map((node) => Number(node.tagName[1]))
      .filter((level, at, all) => at > 0 && level > all[at - 1] + 1).map((level) => `heading level jumps to ${level}`),
    ...[...document.querySelectorAll("button, select, summary")].filter((node) => node.getBoundingClientRect().height < 24)
      .map((node) => `smaller than 24 px: ${node.outerHTML.slice(0, 60)}`),
  ];
}
