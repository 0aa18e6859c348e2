// Elements. Text from trajectories, queries and judges goes into text nodes; nothing here parses HTML.

const SVG = 'http://www.w3.org/2000/svg';
const byId = (id) => document.getElementById(id);

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, '');
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return element;
}

const el = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);
const svg = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);

const number = (value, digits = 1) => (value == null ? '–' : value.toFixed(digits));
const words = (name) => name.replaceAll('_', ' ');

const head = (text, properties) => el('th', { scope: 'col', ...properties }, text);
const figure = (text, properties) => el('td', { class: 'number', ...properties }, text);

// A table that scrolls if it is too wide; `heads` are the cells of its first row.
function table(name, label, heads, rows) {
  return el('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': label },
    el('table', { class: name }, el('thead', {}, el('tr', {}, heads)), el('tbody', {}, rows)));
}

function choices(label, value, options, onchange, properties = {}) {
  const menu = el('select', { ...properties, onchange: (event) => onchange(event.target.value) },
    options.map(([key, text]) => el('option', { value: key, selected: key === String(value) }, text)));
  return el('label', {}, el('span', {}, label), menu);
}
