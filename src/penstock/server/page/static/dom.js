// Makes elements. All text becomes text nodes, so whatever a model or a client wrote is shown and never read as markup.

/** The element with an id, which the page has. */
export const byId = (id) => document.getElementById(id);

/**
 * A new element. Attributes that begin with "on" are listeners; those that are null or false are left out. Children are
 * nodes or text.
 */
export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same in SVG. */
export function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** Terms with what they say, as the children of a `dl`. */
export function terms(pairs) {
  return pairs.map(([term, ...said]) => make("div", {}, make("dt", {}, term), make("dd", {}, ...said)));
}

/** A bar whose length is a share of 0 to 1, from `start` on. */
export function bar(share, kind, start = 0) {
  const stroke = make("span", { class: `bar ${kind}` });
  stroke.style.left = `${100 * Math.min(start, 1)}%`;
  stroke.style.width = `${100 * Math.min(share, 1 - Math.min(start, 1))}%`;
  return make("span", { class: "track" }, stroke);
}
