// The roofline explorer's front end: one module, no imports, the same in JupyterLab and on the static page.
// FORMULAS is written above this text at build time, from the SymPy expressions of rooflab.ledger.

const SVG = "http://www.w3.org/2000/svg";
// The text keeps its size, so a narrow place gets a smaller drawing and not a shrunken one.
const WIDE = { width: 680, height: 400, left: 76, right: 22, top: 14, bottom: 48 };
const NARROW = { ...WIDE, width: 400, height: 340, left: 64, right: 12 };
const PREFIX = { "-4": "p", "-3": "n", "-2": "µ", "-1": "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T", 5: "P", 6: "E" };

// The twin of rooflab.units.si; a test compares the two.
function si(value, unit = "", digits = 4) {
  if (value === 0) return `0 ${unit}`.trim();
  const rounded = value.toExponential(digits - 1);
  const exponent = Number(rounded.split("e")[1]);
  const ratio = unit === "" || unit === "FLOP/byte" || unit === "FLOP/B";
  const plain = ratio && Math.abs(Number(rounded)) >= 0.001 && Math.abs(Number(rounded)) < 1e6;
  const power = plain ? 0 : Math.max(-4, Math.min(6, Math.floor(exponent / 3)));
  const places = Math.max(0, digits - 1 - (exponent - 3 * power));
  let mantissa = Number(`${rounded.split("e")[0]}e${exponent - 3 * power}`).toFixed(Math.min(places, 100));
  if (mantissa.includes(".")) mantissa = mantissa.replace(/0+$/, "").replace(/\.$/, "");
  return `${mantissa} ${PREFIX[power]}${unit}`.trim();
}

function node(name, attributes = {}, text = "") {
  const svg = ["svg", "g", "path", "line", "circle", "rect", "text", "title", "polygon"].includes(name);
  const made = svg ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== "") made.textContent = text;
  return made;
}

// Everything that the page shows about one state, from the state alone: no drawing here.
function evaluate(scenario, state) {
  const device = scenario.devices.find((each) => each.id === state.device);
  const compute = device.compute[state.dtype];
  // What nobody measured keeps its figure on paper, as in rooflab.roofline.
  const all = [...compute, ...device.memory];
  const same = (a, b) => a.kind === b.kind && a.key === b.key;
  const roofs = all.filter((roof) =>
    state.basis === "paper" ? roof.basis === "paper" : roof.basis === "measured" || !all.some((other) => other.basis === "measured" && same(other, roof)),
  );
  if (state.launch === "slider") {
    roofs.push({ kind: "launch", key: "launch", rate: state[scenario.launch], label: "launch, as set" });
  } else if (state.launch !== "none") {
    roofs.push({ kind: "launch", key: "launch", rate: device.launch[state.launch], label: `launch, ${state.launch}` });
  }
  const resolve = sources(scenario, state);
  const rate = (kind, key) => roofs.find((roof) => roof.kind === kind && roof.key === key)?.rate;
  const dots = scenario.dots.map((dot) => {
    const workload = scenario.workloads[dot.workload];
    const values = {};
    for (const [symbol, source] of Object.entries(dot.values)) values[symbol] = resolve(source);
    const count = (name) => FORMULAS[name].call(...FORMULAS[name].symbols.map((symbol) => values[symbol]));
    const amount = (roof) =>
      roof.kind === "compute" ? workload.work[roof.key] : roof.kind === "memory" ? workload.traffic[roof.key] : workload.launches;
    const unit = Object.keys(workload.work)[0];
    const result = { label: dot.label, workload, values, unit, flop: count(workload.work[unit]), bytes: count(workload.traffic.hbm) };
    result.launches = count(workload.launches);
    result.intensity = FORMULAS.intensity.call(result.flop, result.bytes);
    const peak = rate("compute", unit);
    if (peak === undefined) {
      result.problem = `no ${unit} peak on record for ${device.title}`;
      return result;
    }
    result.peak = peak;
    result.ridge = FORMULAS.ridge.call(peak, rate("memory", "hbm"));
    result.time = 0;
    result.times = [];
    for (const roof of roofs) {
      const name = amount(roof);
      if (name === undefined) continue;
      const time = FORMULAS[`${roof.kind}_time`].call(count(name), roof.rate);
      if (time > 0) result.times.push([roof, time]);
      if (time > result.time) Object.assign(result, { time, roof });
    }
    result.attainable = result.flop / result.time;
    // What the other units allow, in operations of the first: a roof that moves with the workload.
    result.scaled = {};
    for (const key of Object.keys(workload.work)) if (key !== unit) result.scaled[key] = result.flop / count(workload.work[key]);
    result.serial = result.times.reduce((sum, [roof, time]) => sum + (roof.kind === "compute" ? time : 0), 0);
    return result;
  });
  const totals = scenario.totals.map((total) => {
    const known = total.terms.every(([index]) => !dots[index].problem);
    const time = known ? total.terms.reduce((sum, [index, many]) => sum + resolve(many) * dots[index].time, 0) : NaN;
    return { label: total.label, time, perToken: time / resolve(total.new), rate: (resolve(total.batch) * resolve(total.new)) / time };
  });
  const floor = rate("launch", "launch");
  const breakEven = floor === undefined ? null : FORMULAS.break_even_bytes.call(rate("memory", "hbm"), floor);
  return { device, compute, roofs, dots, totals, breakEven };
}

// The number that a source stands for: a number, a slider, a field of its choice, the number format, or a quotient.
function sources(scenario, state) {
  const numbers = { dtype: scenario.dtypes[state.dtype] };
  for (const slider of scenario.sliders) {
    numbers[slider.name] = state[slider.name];
    if (!slider.fields) continue;
    for (const [name, value] of Object.entries(slider.fields[slider.values.indexOf(state[slider.name])])) numbers[`${slider.name}.${name}`] = value;
  }
  return (source) => (typeof source === "number" ? source : source.split("/").map((part) => numbers[part]).reduce((a, b) => a / b));
}

// The slider's value at which a dot meets the ridge, or null if it does not within the slider's range.
function crossing(scenario, state, [index, name]) {
  const slider = scenario.sliders.find((each) => each.name === name);
  const beyond = (value) => {
    const dot = evaluate(scenario, { ...state, [name]: value }).dots[index];
    return dot.intensity >= dot.ridge;
  };
  let [low, high] = [slider.values[0], slider.values[slider.values.length - 1]];
  if (beyond(low) || !beyond(high)) return null;
  for (let i = 0; i < 60; i++) {
    const middle = Math.sqrt(low * high);
    if (beyond(middle)) high = middle;
    else low = middle;
  }
  return high;
}

// The launch floors to choose from: those measured on the device, and where a slider holds one, "slider".
function launchModes(scenario, device) {
  return ["none", ...Object.keys(device.launch), ...(scenario.launch ? ["slider"] : [])];
}

// A problem with `state`, in one line that names the value and the choices; "" when there is none.
function problem(scenario, state) {
  const device = scenario.devices.find((each) => each.id === state.device);
  if (!device) return `unknown device "${state.device}"; choose from ${scenario.devices.map((each) => each.id).join(", ")}`;
  const dtypes = Object.keys(device.compute);
  if (!dtypes.includes(state.dtype)) return `${device.title} has no ${state.dtype} peak; choose from ${dtypes.join(", ")}`;
  if (!["paper", "measured"].includes(state.basis)) return `unknown ceilings "${state.basis}"; choose from paper, measured`;
  if (state.basis === "measured" && !measurable(device, state.dtype)) {
    const able = scenario.devices.filter((each) => Object.keys(each.compute).some((dtype) => measurable(each, dtype)));
    return `no measured ceilings for ${device.title} in ${state.dtype}; there are some for ${able.map((each) => each.title).join(", ") || "no device"}`;
  }
  const launches = launchModes(scenario, device);
  if (!launches.includes(state.launch)) return `no launch floor "${state.launch}" for ${device.title}; choose from ${launches.join(", ")}`;
  for (const slider of scenario.sliders) {
    const value = state[slider.name];
    if (!(Number.isFinite(value) && value > 0)) return `${slider.name} is ${value}; give a positive number, such as ${slider.values[0]}`;
    if (slider.names && !slider.values.includes(value)) return `${slider.name} is ${value}; choose from ${slider.values.map((each, i) => `${each} (${slider.names[i]})`).join(", ")}`;
  }
  if (!(Number.isInteger(state.active) && state.active >= 0 && state.active < scenario.dots.length)) {
    return `active is ${state.active}; choose from 0 to ${scenario.dots.length - 1}`;
  }
  return "";
}

function measurable(device, dtype) {
  const kinds = new Set([...(device.compute[dtype] ?? []), ...device.memory].filter((roof) => roof.basis === "measured").map((roof) => roof.kind));
  return kinds.has("compute") && kinds.has("memory");
}

const NAMES = ["device", "dtype", "basis", "launch", "active"];

// The state as a link's fragment, and back.
function toFragment(scenario, state) {
  const pairs = [["explorer", scenario.id], ...[...NAMES, ...scenario.sliders.map((slider) => slider.name)].map((name) => [name, state[name]])];
  return "#" + new URLSearchParams(pairs).toString();
}

function fromFragment(scenario, fragment) {
  const given = new URLSearchParams(fragment.replace(/^#/, ""));
  if (given.get("explorer") !== scenario.id) return null;
  const numbers = ["active", ...scenario.sliders.map((slider) => slider.name)];
  const state = {};
  for (const [name, text] of given) {
    if (name === "explorer") continue;
    if (![...NAMES, ...numbers].includes(name)) return { error: `unknown setting "${name}" in the link; choose from ${[...NAMES, ...numbers.slice(1)].join(", ")}` };
    // Number("") is 0, so an empty value must not pass as a number.
    state[name] = numbers.includes(name) ? (text.trim() === "" ? NaN : Number(text)) : text;
    if (numbers.includes(name) && !Number.isFinite(state[name])) return { error: `${name}=${text} in the link is not a number` };
  }
  return { state };
}

// A formula's MathML with each symbol replaced by its number.
function substituted(tokens, values) {
  const parts = tokens.map((token) => (typeof token === "string" ? token : `<mn>${values[token[0]]}</mn>`));
  return parts.join("");
}

function plainMath(tokens) {
  return tokens.map((token) => (typeof token === "string" ? token : token[1])).join("");
}

let instances = 0;

function render({ model, el }) {
  const scenario = model.get("scenario");
  const isStatic = Boolean(model.get("static"));
  const BOX = el.clientWidth > 0 && el.clientWidth < 520 ? NARROW : WIDE;
  const uid = `rooflab-${scenario.id}-${++instances}`;
  const sliderNames = scenario.sliders.map((slider) => slider.name);
  const read = () => Object.fromEntries([...NAMES, ...sliderNames].map((name) => [name, model.get(name)]));
  const initial = { ...scenario.defaults };
  let notice = "";

  // Skeleton: built once; redraws change attributes and text only.
  const root = node("div", { class: "rooflab" });
  const controls = node("div", { class: "rooflab-controls" });
  const error = node("p", { class: "rooflab-error", role: "alert" });
  error.hidden = true;
  const chart = node("svg", { class: "rooflab-chart", viewBox: `0 0 ${BOX.width} ${BOX.height}`, role: "img" });
  const readout = node("p", { class: "rooflab-readout", "aria-live": "polite" });
  const legend = node("p", { class: "rooflab-legend" });
  const tableBox = node("div", { class: "rooflab-table", tabindex: 0, role: "region", "aria-label": `${scenario.title}: workloads and their bounds` });
  const math = node("div", { class: "rooflab-math", tabindex: 0, role: "region", "aria-label": `${scenario.title}: the formula with its numbers` });
  const pairs = node("p", { class: "rooflab-pairs" });
  const totalsLine = node("p", { class: "rooflab-totals", "aria-live": "polite" });
  const crossingsLine = node("p", { class: "rooflab-crossings" });
  root.append(controls, error, chart, legend, readout, pairs, totalsLine, crossingsLine, tableBox, math);

  function set(changes) {
    notice = "";
    for (const [name, value] of Object.entries(changes)) model.set(name, value);
    model.save_changes();
  }

  function menu(name, label, options, onChange) {
    const box = node("div", { class: "rooflab-control" });
    const select = node("select", { id: `${uid}-${name}` });
    for (const [value, text] of options) select.append(node("option", { value }, text));
    select.addEventListener("change", () => onChange(select.value));
    box.append(node("label", { for: select.id }, label), select);
    controls.append(box);
    return select;
  }

  const pickDevice = (id) => {
    const device = scenario.devices.find((each) => each.id === id);
    const state = read();
    const changes = { device: id };
    const lost = [];
    if (!(state.dtype in device.compute)) {
      changes.dtype = Object.keys(device.compute)[0];
      lost.push(`no ${state.dtype} peak, showing ${changes.dtype}`);
    }
    if (state.basis === "measured" && !measurable(device, changes.dtype ?? state.dtype)) {
      changes.basis = "paper";
      lost.push("no measured ceilings, showing roofs on paper");
    }
    if (!launchModes(scenario, device).includes(state.launch)) {
      changes.launch = scenario.launch ? "slider" : "none";
      lost.push(`no measured launch floor${scenario.launch ? ", showing the slider's" : ""}`);
    }
    set(changes);
    notice = lost.length ? `${device.title}: ${lost.join("; ")}.` : "";
    schedule();
  };
  const deviceMenu = menu("device", "Device", scenario.devices.map((each) => [each.id, each.title]), pickDevice);
  const dtypeMenu = menu("dtype", "Number format", Object.keys(scenario.dtypes).map((each) => [each, each]), (dtype) => {
    const state = read();
    const device = scenario.devices.find((each) => each.id === state.device);
    const stays = state.basis === "paper" || measurable(device, dtype);
    set(stays ? { dtype } : { dtype, basis: "paper" });
    if (!stays) notice = `${device.title}: no measured ceilings in ${dtype}, showing roofs on paper.`;
    schedule();
  });
  const basisMenu = menu("basis", "Bound by", [["paper", "roofs on paper"], ["measured", "measured ceilings"]], (basis) => set({ basis }));
  const floors = [["none", "none"], ["eager", "eager launches"], ["graph", "CUDA graph"], ...(scenario.launch ? [["slider", "as set by the slider"]] : [])];
  const launchMenu = menu("launch", "Launch floor", floors, (launch) => set({ launch }));

  // A choice may bring other sliders along: a model its number of key-value heads.
  const choices = scenario.sliders.filter((slider) => slider.names).map((slider) => {
    const options = slider.values.map((value, index) => [value, slider.names[index]]);
    const select = menu(slider.name, slider.label, options, (text) => {
      const fields = slider.fields?.[slider.values.indexOf(Number(text))] ?? {};
      const moved = Object.entries(fields).filter(([name]) => sliderNames.includes(name));
      set({ [slider.name]: Number(text), ...Object.fromEntries(moved) });
    });
    return { slider, select };
  });

  const ranges = scenario.sliders.filter((slider) => !slider.names).map((slider) => {
    const box = node("div", { class: "rooflab-control rooflab-slider" });
    const input = node("input", { type: "range", id: `${uid}-${slider.name}`, min: 0, max: slider.values.length - 1, step: 1 });
    const output = node("output", { for: input.id });
    const label = node("label", { for: input.id }, `${slider.label} `);
    label.append(output);
    input.addEventListener("input", () => set({ [slider.name]: slider.values[Number(input.value)] }));
    box.append(label, input);
    controls.append(box);
    return { slider, input, output };
  });

  const buttons = node("div", { class: "rooflab-buttons" });
  const reset = node("button", { type: "button" }, "Reset");
  reset.addEventListener("click", () => {
    set(initial);
    if (isStatic && location.hash.startsWith("#explorer=")) history.replaceState(null, "", location.pathname + location.search);
  });
  buttons.append(reset);
  const link = node("a", { class: "rooflab-link" }, "Link to this state");
  if (isStatic) buttons.append(link);
  controls.append(buttons);

  // Axes.
  const [x0, x1] = scenario.x_range.map(Math.log10);
  const [y0, y1] = scenario.y_range.map(Math.log10);
  const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
  // Short names, to fit beside each other: the format stands above the chart, and below it what is dashed and the names in full.
  const short = (roof) => {
    if (roof.basis === "paper") return BOX === NARROW && roof.kind === "compute" ? "" : roof.label.replace(/ bandwidth$/, "");
    return roof.label.replace(BOX === NARROW ? /measured / : "", "").replace(/\w+ GEMM/, "GEMM");
  };
  const named = (roof, unit) => [short(roof), si(roof.rate, unit, roof.basis === "measured" ? 3 : 4)].filter(Boolean).join(", ");
  const x = (value) => BOX.left + ((clamp(Math.log10(value), x0, x1) - x0) / (x1 - x0)) * (BOX.width - BOX.left - BOX.right);
  const y = (value) => BOX.height - BOX.bottom - ((clamp(Math.log10(value), y0, y1) - y0) / (y1 - y0)) * (BOX.height - BOX.top - BOX.bottom);
  const grid = node("g", { class: "rooflab-grid" });
  for (let e = Math.ceil(x0); e <= x1; e++) {
    grid.append(node("line", { x1: x(10 ** e), x2: x(10 ** e), y1: BOX.top, y2: BOX.height - BOX.bottom }));
    grid.append(node("text", { x: x(10 ** e), y: BOX.height - BOX.bottom + 17, "text-anchor": x(10 ** e) > BOX.width - 30 ? "end" : "middle" }, si(Number((10 ** e).toPrecision(1)))));
  }
  for (let e = Math.ceil(y0); e <= y1; e++) {
    grid.append(node("line", { x1: BOX.left, x2: BOX.width - BOX.right, y1: y(10 ** e), y2: y(10 ** e) }));
    grid.append(node("text", { x: BOX.left - 6, y: y(10 ** e) + 4, "text-anchor": "end" }, si(10 ** e)));
  }
  const title = node("title", { id: `${uid}-title` });
  chart.setAttribute("aria-labelledby", title.id);
  chart.append(
    title,
    grid,
    node("text", { x: (BOX.left + BOX.width - BOX.right) / 2, y: BOX.height - 10, "text-anchor": "middle" }, "intensity, FLOP per byte"),
    node("text", { x: 0, y: 0, transform: `translate(16 ${(BOX.top + BOX.height - BOX.bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, "attainable performance, FLOP/s"),
  );
  const roofLayer = node("g");
  const pointLayer = node("g", { class: "rooflab-points" });
  const dotLayer = node("g");
  const crossingLayer = node("g", { class: "rooflab-crossing" });
  chart.append(roofLayer, crossingLayer, pointLayer, dotLayer);

  const marks = scenario.dots.map((dot, index) => {
    const mark = node("g", { class: `rooflab-dot rooflab-dot-${index % 7}`, "data-dot": index });
    mark.append(node("circle", { r: 10 }), node("text", { y: 4, "text-anchor": "middle" }, String.fromCharCode(65 + index)));
    mark.addEventListener("click", () => set({ active: index }));
    dotLayer.append(mark);
    return mark;
  });

  // Table: one row a workload.
  const table = node("table");
  const head = node("tr");
  for (const name of ["workload", "FLOP", "bytes", "FLOP/byte", "at most", "at least", "bound by"]) head.append(node("th", { scope: "col" }, name));
  const thead = node("thead");
  thead.append(head);
  const tbody = node("tbody");
  const rows = scenario.dots.map((dot, index) => {
    const row = node("tr");
    const pick = node("input", { type: "radio", name: `${uid}-active`, id: `${uid}-dot-${index}`, "aria-label": `show the formula of ${dot.label}` });
    pick.addEventListener("change", () => set({ active: index }));
    const name = node("td");
    const label = node("label");
    label.append(pick, ` ${String.fromCharCode(65 + index)} ${dot.label}`);
    name.append(label);
    const cells = ["flop", "bytes", "intensity", "attainable", "time", "bound"].map((key) => node("td", { "data-cell": key }));
    row.append(name, ...cells);
    tbody.append(row);
    return { row, pick, cells };
  });
  table.append(thead, tbody);
  tableBox.append(table);

  let drawnRoofs = "";
  let measuredLines = "";
  function drawRoofs(state, device, stated, scaled) {
    const key = [state.device, state.dtype, state.basis, JSON.stringify(scaled)].join();
    if (key === drawnRoofs) return;
    drawnRoofs = key;
    roofLayer.replaceChildren();
    const edge = scenario.x_range;
    const memory = device.memory;
    const compute = stated.map((roof) => ({ ...roof, rate: roof.rate * (scaled[roof.key] ?? 1) })).sort((a, b) => b.rate - a.rate);
    let above = -Infinity;
    // A name stands clear of a dot on its roof, and neither on another roof nor on another name.
    const names = [];
    const free = (base) => !compute.some((roof) => y(roof.rate) > base - 11 && y(roof.rate) < base + 4) && !names.some((other) => Math.abs(other - base) < 13);
    const beside = (place, offsets) => place + (offsets.find((offset) => free(place + offset)) ?? offsets[0]);
    // A compute roof starts where the fastest memory of its basis meets it.
    for (const roof of compute) {
      const feeds = memory.filter((each) => each.basis === roof.basis).map((each) => each.rate);
      const start = Math.max(edge[0], FORMULAS.ridge.call(roof.rate, Math.max(...feeds)));
      roofLayer.append(node("path", { class: `rooflab-roof rooflab-${roof.basis}`, d: `M${x(start)} ${y(roof.rate)}H${x(edge[1])}` }));
      if (roof.key in scaled) {
        // These roofs may lie close together, so their names stand one below the other, left of them.
        above = Math.max(y(roof.rate) + 4, above + 15);
        roofLayer.append(node("text", { x: x(start) - 2 - (above - y(roof.rate)), y: above, "text-anchor": "end" }, named(roof, "FLOP/s")));
      } else {
        const base = beside(y(roof.rate), roof.basis === "paper" ? [-13, -5, 14] : [24, 19, 14, 30, -13]);
        names.push(base);
        roofLayer.append(node("text", { x: BOX.width - BOX.right - 4, y: base, "text-anchor": "end" }, named(roof, "FLOP/s")));
      }
    }
    const slopes = [];
    for (const roof of memory) {
      const limits = compute.filter((each) => each.basis === roof.basis).map((each) => each.rate);
      if (!limits.length) continue;
      const end = FORMULAS.ridge.call(Math.max(...limits), roof.rate);
      // Clip against the bottom of the chart, so that the slope stays true.
      const start = Math.max(edge[0], scenario.y_range[0] / roof.rate);
      const at = (intensity) => `${x(intensity)} ${y(FORMULAS.attainable.call(intensity, Infinity, roof.rate))}`;
      roofLayer.append(node("path", { class: `rooflab-roof rooflab-${roof.basis}`, d: `M${at(start)}L${at(end)}` }));
      slopes.push({ roof, x: x(start), y: y(roof.rate * start) });
    }
    // Slopes lie close together: caches have their names above all of them, main memory below, in the order of the slopes.
    const angle = Math.atan2((BOX.height - BOX.top - BOX.bottom) / (y1 - y0), (BOX.width - BOX.left - BOX.right) / (x1 - x0));
    slopes.sort((a, b) => a.roof.rate - b.roof.rate);
    for (const [group, outer, sign] of [
      [slopes.filter(({ roof }) => roof.key !== "hbm"), slopes.at(-1), -1],
      [slopes.filter(({ roof }) => roof.key === "hbm").reverse(), slopes[0], 1],
    ]) {
      group.forEach(({ roof }, row) => {
        // The baseline of a name below lies further out by the letters' height.
        const aside = sign * ((sign < 0 ? 7 : 21) + 14 * row);
        const along = sign < 0 ? 14 : BOX === WIDE ? 80 : 50; // where the dots of small intensity leave room
        const spot = [outer.x + along * Math.cos(angle) + aside * Math.sin(angle), outer.y - along * Math.sin(angle) + aside * Math.cos(angle)];
        roofLayer.append(node("text", { transform: `translate(${spot.join(" ")}) rotate(${(-angle * 180) / Math.PI})` }, named(roof, "B/s")));
      });
    }
    const measured = [...compute, ...memory].some((roof) => roof.basis === "measured");
    measuredLines = measured ? "Dashed: measured ceilings." : "No measured ceilings on record for this device.";
  }

  let drawnPoints = null;
  let drawn = [];
  function drawPoints(state) {
    // GPU times know no launch floor, so they are not drawn where one is.
    // A reader's card that is not on the menu has its dots on the chart of every device.
    const here = (each) => each.device === state.device || !scenario.devices.some((device) => device.id === each.device);
    const shown = model.get("points").filter(
      (each) => state.launch === "none" && here(each) && each.dtype === state.dtype && Object.entries(each.when).every(([name, value]) => state[name] === value),
    );
    const key = JSON.stringify(shown);
    if (key !== drawnPoints) {
      drawnPoints = key;
      pointLayer.replaceChildren();
      for (const point of shown) {
        const [px, py] = [x(point.intensity), y(point.flop_per_s)];
        const own = point.label.startsWith("yours");
        const corners = own ? [[-4, -4], [4, -4], [4, 4], [-4, 4]] : [[0, -5], [5, 0], [0, 5], [-5, 0]];
        const shape = node("polygon", { points: corners.map(([dx, dy]) => `${px + dx},${py + dy}`).join(" "), ...(own && { class: "rooflab-own" }) });
        shape.append(node("title", {}, `${point.label}: ${si(point.flop_per_s, "FLOP/s")} at ${si(point.intensity, "FLOP/byte")}. ${point.source}`));
        pointLayer.append(shape);
      }
    }
    const said = (shape, own) => {
      const found = shown.filter((point) => point.label.startsWith("yours") === own);
      return found.length ? `${shape} (${[...new Set(found.map((point) => point.source))].join("; ")}).` : "";
    };
    drawn = shown;
    legend.textContent = ["Solid: roofs on paper.", measuredLines, said("Diamonds: measured points", false), said("Squares: your points", true)].filter(Boolean).join(" ");
  }

  // A dashed line at the ridge says which value of a slider takes a dot there.
  function drawCrossings(state, dots) {
    const letter = (index) => String.fromCharCode(65 + index);
    const lines = [];
    crossingLayer.replaceChildren();
    scenario.crossings.forEach(([index, name], row) => {
      const dot = dots[index];
      if (dot.problem) return;
      const slider = scenario.sliders.find((each) => each.name === name);
      const [low, high] = [slider.values[0], slider.values[slider.values.length - 1]];
      const value = crossing(scenario, state, [index, name]);
      if (value === null) {
        const side = dot.intensity < dot.ridge ? "left" : "right";
        lines.push(`${letter(index)} (${dot.label}) stays ${side} of the ridge for ${name} from ${low} to ${high}.`);
        return;
      }
      const text = `${letter(index)} crosses at ${name} = ${Math.ceil(value - 1e-9)}`;
      lines.push(`${letter(index)} (${dot.label}) crosses the ridge at ${name} = ${Math.ceil(value - 1e-9)}.`);
      const px = x(dot.ridge);
      crossingLayer.append(node("line", { x1: px, x2: px, y1: y(dot.peak), y2: BOX.height - BOX.bottom }));
      const left = px > BOX.width / 2; // of the line there is room for the words
      crossingLayer.append(node("text", { x: px + (left ? -5 : 5), y: BOX.height - BOX.bottom - 8 - 15 * row, "text-anchor": left ? "end" : "start" }, text));
    });
    crossingsLine.textContent = lines.join(" ");
  }

  function draw() {
    const state = read();
    const wrong = problem(scenario, state);
    // A state that cannot be drawn leaves the last good picture and says what is wrong.
    error.hidden = !(wrong || notice);
    error.textContent = wrong || notice;
    if (wrong) return;
    const { device, compute, dots, totals, breakEven } = evaluate(scenario, state);
    drawRoofs(state, device, compute, dots[state.active].scaled ?? {});
    drawPoints(state);
    deviceMenu.value = state.device;
    dtypeMenu.value = state.dtype;
    for (const option of dtypeMenu.options) option.disabled = !(option.value in device.compute);
    basisMenu.value = state.basis;
    basisMenu.options[1].disabled = !measurable(device, state.dtype);
    launchMenu.value = state.launch;
    for (const option of launchMenu.options) option.disabled = !launchModes(scenario, device).includes(option.value);
    for (const { slider, input, output } of ranges) {
      const value = state[slider.name];
      // The thumb goes to the nearest step; the value itself is shown as it is and never written back.
      const near = slider.values.reduce((best, each, index) => (Math.abs(Math.log(each / value)) < Math.abs(Math.log(slider.values[best] / value)) ? index : best), 0);
      if (Number(input.value) !== near) input.value = near;
      const text = slider.unit ? si(value, slider.unit) : `${value}`;
      output.textContent = text;
      input.setAttribute("aria-valuetext", text);
      // With another launch floor this slider would move nothing.
      if (slider.name === scenario.launch) input.disabled = state.launch !== "slider";
    }
    for (const { slider, select } of choices) select.value = String(state[slider.name]);
    totalsLine.textContent = totals
      .filter((total) => Number.isFinite(total.time))
      .map((total) => `${total.label}: at least ${si(total.time, "s")}, ${si(total.perToken, "s")} per token of a sequence, at most ${si(total.rate, "token/s")}.`)
      .join(" ");
    drawCrossings(state, dots);
    dots.forEach((dot, index) => {
      const { row, pick, cells } = rows[index];
      row.classList.toggle("rooflab-active", index === state.active);
      marks[index].classList.toggle("rooflab-active", index === state.active);
      pick.checked = index === state.active;
      if (index === state.active && dotLayer.lastChild !== marks[index]) dotLayer.append(marks[index]);
      const shown = dot.problem
        ? [si(dot.flop, "FLOP"), si(dot.bytes, "B"), si(dot.intensity), "", "", dot.problem]
        : [si(dot.flop, "FLOP"), si(dot.bytes, "B"), si(dot.intensity), si(dot.attainable, "FLOP/s"), si(dot.time, "s"), dot.roof.label];
      shown.forEach((text, column) => (cells[column].textContent = text));
      marks[index].setAttribute("visibility", dot.problem ? "hidden" : "visible");
      if (!dot.problem) marks[index].setAttribute("transform", `translate(${x(dot.intensity)} ${y(dot.attainable)})`);
    });
    const dot = dots[state.active];
    const where = `${dot.label} on ${device.title}, ${state.dtype}`;
    readout.textContent = dot.problem
      ? `${where}: ${si(dot.intensity, "FLOP/byte")}; ${dot.problem}.`
      : `${where}: ${si(dot.intensity, "FLOP/byte")}, ${dot.intensity < dot.ridge ? "left of" : dot.intensity === dot.ridge ? "at" : "right of"} the ridge at ${si(dot.ridge, "FLOP/byte")}. ` +
        `Bound by ${dot.roof.label}: at most ${si(dot.attainable, "FLOP/s")}, at least ${si(dot.time, "s")}.`;
    title.textContent = `Roofline chart. ${readout.textContent}`;
    const letter = (index) => String.fromCharCode(65 + index);
    pairs.textContent = scenario.pairs
      .filter(([from, to]) => !dots[from].problem && !dots[to].problem)
      .map(([from, to]) => {
        const time = (index) => dots[index].flop / drawn.find((point) => point.dot === index && !point.label.startsWith("yours"))?.flop_per_s;
        const measured = time(from) / time(to);
        return `${letter(from)} to ${letter(to)}: ${si(dots[from].time / dots[to].time)}x (${si(dots[from].time, "s")} to ${si(dots[to].time, "s")})${measured ? `, measured ${si(measured, "", 3)}x` : ""}.`;
      })
      .join(" ");
    const line = (symbol, name, value, unit) =>
      `<div><math><mi>${symbol}</mi><mo>=</mo>${plainMath(FORMULAS[name].math)}<mo>=</mo>${substituted(FORMULAS[name].math, dot.values)}</math> <span>= ${si(value, unit)}</span></div>`;
    math.innerHTML =
      line("F", dot.workload.work[dot.unit], dot.flop, "FLOP") +
      line("Q", dot.workload.traffic.hbm, dot.bytes, "B") +
      `<div><math><mi>I</mi><mo>=</mo>${plainMath(FORMULAS.intensity.math)}</math> <span>= ${si(dot.intensity, "FLOP/byte")}</span></div>` +
      (dot.problem ? "" : `<div class="rooflab-wrap"><math><mi>t</mi><mo>≥</mo><mo>max</mo></math>(${dot.times.map(([roof, time]) => `${si(time, "s")} <small>${roof.label}</small>`).join(", ")}) = ${si(dot.time, "s")}</div>`) +
      (scenario.serial && !dot.problem
        ? `<p>One unit after another: ${dot.times.filter(([roof]) => roof.kind === "compute").map(([, time]) => si(time, "s")).join(" + ")} = ${si(dot.serial, "s")}, so ${si(dot.flop / dot.serial, "FLOP/s")}, ${si((100 * dot.flop) / dot.serial / dot.peak, "", 3)} % of the ${dot.times.find(([roof]) => roof.key === dot.unit)[0].label}; all at once ${si((100 * dot.attainable) / dot.peak, "", 3)} %.</p>`
        : "") +
      (scenario.launch && breakEven !== null
        ? `<div class="rooflab-wrap">A launch takes as long as moving <math>${plainMath(FORMULAS.break_even_bytes.math)}</math> = ${si(breakEven, "B")}; here a kernel moves ${si(dot.bytes / dot.launches, "B")}.</div>`
        : "") +
      `<p>Counted: ${dot.workload.assumes}.</p>`;
    if (isStatic) link.href = toFragment(scenario, state);
  }

  // One redraw a frame, however many traits change at once.
  const schedule = oncePerFrame(draw);

  function adopt(fragment) {
    const given = fromFragment(scenario, fragment);
    if (!given) return;
    const wrong = given.error ?? problem(scenario, { ...read(), ...given.state });
    if (wrong) {
      notice = `${wrong}. Showing the last good state.`;
      schedule();
    } else {
      set(given.state);
    }
  }

  const watched = [...NAMES, ...sliderNames, "points"];
  el.replaceChildren(root);
  draw();
  return follow(model, watched, schedule, isStatic, adopt);
}
