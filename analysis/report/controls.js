// Elements and controls that the other scripts share. This script runs first, and marks the page as
// scripted: the style sheet then shows the parts of the class `live`.
"use strict";
document.documentElement.classList.add("scripted");

const make = (name, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
};

// A list to choose from, of pairs of a value and its title, and the label around it.
const choice = (label, options) => {
  const select = make("select", {}, ...options.map(([value, title]) => make("option", { value }, title)));
  return [select, make("label", {}, `${label} `, select)];
};

// Content that may be wider than a phone scrolls by itself, with the keyboard too.
const scrolling = (label, ...children) => {
  const made = make("div", { className: "scroll", tabIndex: 0 }, ...children);
  made.setAttribute("role", "region");
  made.setAttribute("aria-label", label);
  return made;
};

// Whether the text of an element has every word that a field holds, in any case and order.
const hasWords = (element, field) => {
  const text = element.textContent.toLowerCase();
  return field.value.toLowerCase().split(/\s+/).every((word) => text.includes(word));
};
