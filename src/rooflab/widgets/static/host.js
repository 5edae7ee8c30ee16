// Gives each explorer of a static page a model without a kernel; written after explorer.js and bits.js in one classic script.

class StaticModel {
  constructor(state) {
    this.state = state;
    this.handlers = {};
  }
  get(name) {
    return this.state[name];
  }
  set(name, value) {
    if (Object.is(this.state[name], value)) return;
    this.state[name] = value;
    for (const handler of this.handlers[`change:${name}`] ?? []) handler();
  }
  on(name, handler) {
    (this.handlers[name] ??= []).push(handler);
  }
  off(name, handler) {
    this.handlers[name] = (this.handlers[name] ?? []).filter((each) => each !== handler);
  }
  save_changes() {}
}

function start() {
  for (const el of document.querySelectorAll("[data-rooflab-explorer]")) {
    const scenario = JSON.parse(el.querySelector("script[type='application/json']").textContent);
    const model = new StaticModel({ scenario, static: true, points: scenario.points, ...scenario.defaults });
    render({ model, el });
    el.model = model;
  }
  for (const el of document.querySelectorAll("[data-rooflab-format]")) {
    el.model = new StaticModel({ static: true, ...JSON.parse(el.querySelector("script[type='application/json']").textContent) });
    formatExplorer.render({ model: el.model, el });
  }
  performance.mark("rooflab-ready");
}
// For tests: the formulas and the formats as the page has them.
window.rooflab = { FORMULAS, si, formatExplorer };
if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
else start();
