// The format explorer's front end: a number format, bit by bit. No imports; the same in JupyterLab and on the static page,
// where it shares one script with the roofline explorer and therefore keeps its names to itself.
// Its decode and encode are the twins of rooflab.numerics; a test compares them.

const formatExplorer = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const FIELDS = ["format", "code", "typed", "saturate"];
  const NUMBER = /^[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf|infinity|nan)$/i;

  function node(name, attributes = {}, text = "", space = "") {
    const made = space ? document.createElementNS(space, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== "") made.textContent = text;
    return made;
  }
  const svg = (name, attributes, text) => node(name, attributes, text, SVG);

  // A format is { exponent, mantissa, bias, infinity, nan }: two counts of bits, the bias, whether all-ones exponents are
  // kept for infinity and NaN (else only the one code with all ones is NaN), and the code of NaN.
  const width = (f) => 1 + f.exponent + f.mantissa;
  const signBit = (f) => 1 << (f.exponent + f.mantissa);
  const infinityCode = (f) => ((1 << f.exponent) - 1) << f.mantissa;
  const topCode = (f) => (f.infinity ? infinityCode(f) - 1 : signBit(f) - 2);

  function fields(f, code) {
    return { s: code & signBit(f) ? 1 : 0, e: (code >> f.mantissa) & ((1 << f.exponent) - 1), m: code & ((1 << f.mantissa) - 1) };
  }

  function decode(f, code) {
    const { s, e, m } = fields(f, code);
    const magnitude = code & (signBit(f) - 1);
    if (magnitude > topCode(f)) return f.infinity && m === 0 ? (s ? -Infinity : Infinity) : NaN;
    const value = e === 0 ? 2 ** (1 - f.bias) * (m / 2 ** f.mantissa) : 2 ** (e - f.bias) * (1 + m / 2 ** f.mantissa);
    return s ? -value : value;
  }

  // The code of `value`, rounded to nearest, ties to the even mantissa.
  function encode(f, value, saturate = false) {
    if (Number.isNaN(value)) return f.nan;
    const sign = value < 0 || Object.is(value, -0) ? signBit(f) : 0;
    const beyond = saturate ? topCode(f) : f.infinity ? infinityCode(f) : f.nan & (signBit(f) - 1);
    const size = Math.abs(value);
    if (size === Infinity) return sign | beyond;
    // In steps of the octave's spacing; below the smallest normal number the spacing stays.
    const exponent = Math.max(size === 0 ? -Infinity : octave(size), 1 - f.bias);
    const steps = size / 2 ** (exponent - f.mantissa);
    const below = Math.floor(steps);
    const rest = steps - below;
    const rounded = below + (rest > 0.5 || (rest === 0.5 && below % 2 === 1) ? 1 : 0);
    // A mantissa that overflows carries into the exponent.
    const code = (exponent + f.bias - 1) * 2 ** f.mantissa + rounded;
    return sign | (code > topCode(f) ? beyond : code);
  }

  // The exponent e with 2^e <= size < 2^(e + 1); a logarithm alone may miss it by one.
  function octave(size) {
    let e = Math.max(Math.floor(Math.log2(size)), -1074);
    if (e < 1023 && 2 ** (e + 1) <= size) e++;
    else if (2 ** e > size) e--;
    return e;
  }

  // Finite codes in the order of their values, both zeros included: ..., -2, -1 (negative zero), 0 (zero), 1, ...
  const rankOf = (f, code) => (code & signBit(f) ? -(code & (signBit(f) - 1)) - 1 : code);
  const atRank = (f, rank) => (rank < 0 ? signBit(f) | (-rank - 1) : rank);

  function parse(text) {
    const plain = text.trim().replace("\u2212", "-");
    if (!NUMBER.test(plain)) return null;
    if (/nan/i.test(plain)) return NaN;
    return /inf/i.test(plain) ? (plain.startsWith("-") ? -Infinity : Infinity) : Number(plain);
  }

  const SUPERSCRIPT = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
  const power = (base, exponent) => base + [...String(exponent)].map((each) => SUPERSCRIPT[each]).join("");

  // A number in at most `digits` digits; with seven, the twin of rooflab.widgets.bits.show.
  function show(value, digits = 7) {
    if (Number.isNaN(value)) return "NaN";
    if (Math.abs(value) === Infinity) return value > 0 ? "∞" : "-∞";
    if (Object.is(value, -0)) return "-0";
    if (value === 0) return "0";
    const [mantissa, exponent] = Number(value).toExponential(digits - 1).split("e");
    if (Number(exponent) >= -4 && Number(exponent) < 7) return String(Number(value.toPrecision(digits)));
    return `${Number(mantissa)}×${power(10, Number(exponent))}`;
  }
  const equals = (value) => (Number(value.toPrecision(7)) === value || !Number.isFinite(value) ? "=" : "≈");
  const stepText = (e) => (e >= -4 && e < 10 ? `${power(2, e)} = ${show(2 ** e)}` : `${power(2, e)} ${equals(2 ** e)} ${show(2 ** e)}`);

  // Everything that the page shows about one state, from the state alone: no drawing here.
  function evaluate(f, state) {
    const { s, e, m } = fields(f, state.code);
    const value = decode(f, state.code);
    const magnitude = state.code & (signBit(f) - 1);
    const top = topCode(f);
    const finite = magnitude <= top;
    const result = { s, e, m, value, magnitude, finite, largest: decode(f, top) };
    result.kind = Number.isNaN(value) ? "NaN" : !finite ? "infinity" : magnitude === 0 ? (s ? "negative zero" : "zero") : e === 0 ? "subnormal" : "normal";
    // From the last value below the overflow's half-way point on, or beyond it: the tie goes to the even code.
    result.limit = result.largest + (result.largest - decode(f, top - 1)) / 2;
    result.limitIn = top % 2 === 0;
    result.beyond = f.infinity ? "∞" : "NaN";
    if (finite) {
      result.spacingPower = Math.max(e, 1) - f.bias - f.mantissa;
      result.spacing = 2 ** result.spacingPower;
      const neighbour = (step) => {
        if (magnitude === 0) return step * decode(f, 1);
        const away = step > 0 === (s === 0);
        return away && magnitude === top ? NaN : decode(f, state.code + (away ? 1 : -1));
      };
      result.up = neighbour(1);
      result.down = neighbour(-1);
    }
    if (state.typed !== "") {
      result.typed = parse(state.typed);
      result.error = (value - result.typed) / result.typed + 0; // no negative zero
      const size = Math.abs(result.typed);
      result.overflows = Number.isFinite(size) && (result.limitIn ? size > result.limit : size >= result.limit);
    }
    return result;
  }

  // A problem with `state`, in one line that names the value and the choices; "" when there is none.
  function problem(formats, state) {
    const f = formats[state.format];
    if (!f) return `unknown format "${state.format}"; choose from ${Object.keys(formats).join(", ")}`;
    const last = 2 ** width(f) - 1;
    if (!(Number.isInteger(state.code) && state.code >= 0 && state.code <= last)) return `code is ${state.code}; ${state.format} has codes 0 to ${last}`;
    if (state.typed !== "" && parse(state.typed) === null) return noNumber(state.typed);
    if (typeof state.saturate !== "boolean") return `saturate is ${state.saturate}; choose from true, false`;
    return "";
  }
  const noNumber = (text) => `"${text}" is no number; type one such as 3.3, -1e-4, inf or nan`;

  const hex = (f, code) => "0x" + code.toString(16).padStart(width(f) / 4, "0");

  // The state as a link's fragment, and back.
  function toFragment(formats, state) {
    return "#" + new URLSearchParams({ explorer: "format", ...state, code: hex(formats[state.format], state.code) }).toString();
  }

  function fromFragment(fragment) {
    const given = new URLSearchParams(fragment.replace(/^#/, ""));
    if (given.get("explorer") !== "format") return null;
    const state = {};
    for (const [name, text] of given) {
      if (name === "explorer") continue;
      if (!FIELDS.includes(name)) return { error: `unknown setting "${name}" in the link; choose from ${FIELDS.join(", ")}` };
      // Number("") is 0, so an empty value must not pass as a number.
      if (name === "code" && !/^(0x[0-9a-f]+|\d+)$/i.test(text)) return { error: `code=${text} in the link is no code; give one such as 56 or 0x38` };
      if (name === "saturate" && !["true", "false"].includes(text)) return { error: `saturate=${text} in the link; choose from true, false` };
      state[name] = name === "code" ? Number(text) : name === "saturate" ? text === "true" : text;
    }
    return { state };
  }

  // What a bit is worth, for its button's name.
  function bitName(f, bit) {
    if (bit === f.exponent + f.mantissa) return "sign bit";
    if (bit >= f.mantissa) return `exponent bit, worth ${2 ** (bit - f.mantissa)}`;
    return `mantissa bit, worth 1/${2 ** (f.mantissa - bit)}`;
  }

  let instances = 0;

  function render({ model, el }) {
    const formats = model.get("formats");
    const isStatic = Boolean(model.get("static"));
    const narrow = el.clientWidth > 0 && el.clientWidth < 520;
    const uid = `rooflab-format-${++instances}`;
    const read = () => Object.fromEntries(FIELDS.map((name) => [name, model.get(name)]));
    const initial = read();
    let notice = "";

    // Skeleton: built once; redraws change attributes and text only. The bits and the axis are built anew for a format.
    const root = node("div", { class: "rooflab rooflab-format" });
    const controls = node("div", { class: "rooflab-controls" });
    const bits = node("div", { class: "rooflab-bits" });
    const error = node("p", { class: "rooflab-error", role: "alert", id: `${uid}-error` });
    error.hidden = true;
    const readout = node("p", { class: "rooflab-readout", "aria-live": "polite" });
    const math = node("div", { class: "rooflab-math", tabindex: 0, role: "region", "aria-label": "The formula with its numbers" });
    const facts = node("dl", { class: "rooflab-facts" });
    const chart = svg("svg", { class: "rooflab-chart rooflab-line", role: "img", "aria-labelledby": `${uid}-title` });
    const legend = node("p", { class: "rooflab-legend" });

    function set(changes) {
      notice = "";
      for (const [name, value] of Object.entries(changes)) model.set(name, value);
      model.save_changes();
      schedule();
    }

    function control(kind, name, label, attributes = {}) {
      const box = node("div", { class: "rooflab-control" });
      const made = node(kind, { id: `${uid}-${name}`, ...attributes });
      const text = node("label", { for: made.id }, label);
      box.append(text, made);
      controls.append(box);
      return made;
    }

    function menu(name, label, options, onChange) {
      const select = control("select", name, label);
      for (const [value, text] of options) select.append(node("option", { value }, text));
      select.addEventListener("change", () => onChange(select.value));
      return select;
    }

    // The number stays when the format or the rounding changes; one that the new format lacks is then as if typed.
    function round(changes) {
      const state = read();
      const value = state.typed === "" ? decode(formats[state.format], state.code) : parse(state.typed);
      const next = { ...state, ...changes };
      const code = encode(formats[next.format], value, next.saturate);
      const kept = Object.is(decode(formats[next.format], code), value);
      set({ ...changes, code, typed: state.typed === "" && !kept ? String(value).replace("Infinity", "inf") : state.typed });
    }

    const formatMenu = menu("format", "Format", Object.keys(formats).map((each) => [each, `${each}, ${width(formats[each])} bit`]), (format) => round({ format }));
    const input = control("input", "typed", "Round a number", { type: "text", inputmode: "text", autocomplete: "off", spellcheck: "false", placeholder: "such as 3.3" });
    input.addEventListener("input", () => {
      const text = input.value.trim().replace("\u2212", "-");
      if (text === "") return set({ typed: "" });
      const value = parse(text);
      // Half of a number ("1e") is no mistake yet.
      if (value === null) return;
      const state = read();
      set({ typed: text, code: encode(formats[state.format], value, state.saturate) });
    });
    input.addEventListener("change", () => {
      const text = input.value.trim();
      notice = text !== "" && parse(text) === null ? noNumber(text) : "";
      schedule();
    });
    const saturateMenu = menu("saturate", "Beyond the largest, give", [["false", "NaN or infinity"], ["true", "the largest (saturate)"]], (text) => {
      if (read().typed === "") set({ saturate: text === "true" });
      else round({ saturate: text === "true" });
    });
    const buttons = node("div", { class: "rooflab-buttons" });
    const reset = node("button", { type: "button" }, "Reset");
    reset.addEventListener("click", () => {
      input.value = "";
      set(initial);
      if (isStatic && location.hash.startsWith("#explorer=format")) history.replaceState(null, "", location.pathname + location.search);
    });
    const link = node("a", { class: "rooflab-link" }, "Link to this state");
    buttons.append(reset);
    if (isStatic) buttons.append(link);
    controls.append(buttons);

    const slide = node("div", { class: "rooflab-control rooflab-slider" });
    const slider = node("input", { type: "range", id: `${uid}-value`, step: 1 });
    const output = node("output", { for: slider.id });
    const slideLabel = node("label", { for: slider.id }, "All finite values, in order ");
    slideLabel.append(output);
    slide.append(slideLabel, slider);
    slider.addEventListener("input", () => set({ code: atRank(formats[read().format], Number(slider.value)), typed: "" }));

    root.append(controls, bits, slide, error, readout, math, facts, chart, legend);

    // The bits, in three groups, with what each group says.
    let builtBits = "";
    let toggles = [];
    let says = {};
    function buildBits(format) {
      if (format === builtBits) return;
      builtBits = format;
      const f = formats[format];
      toggles = [];
      says = {};
      bits.replaceChildren();
      for (const [group, high, low] of [["sign", f.exponent + f.mantissa, f.exponent + f.mantissa], ["exponent", f.exponent + f.mantissa - 1, f.mantissa], ["mantissa", f.mantissa - 1, 0]]) {
        const box = node("div", { class: `rooflab-group rooflab-${group}`, role: "group", "aria-label": `${group}, ${high - low + 1} bit` });
        const row = node("div", { class: "rooflab-bitrow" });
        for (let bit = high; bit >= low; bit--) {
          const button = node("button", { type: "button", "aria-label": bitName(f, bit), "data-bit": bit });
          button.addEventListener("click", () => set({ code: read().code ^ (1 << bit), typed: "" }));
          toggles.push([bit, button]);
          row.append(button);
        }
        says[group] = node("div", { class: "rooflab-says" });
        box.append(node("div", { class: "rooflab-says" }, group), row, says[group]);
        bits.append(box);
      }
      slider.min = -topCode(f) - 1;
      slider.max = topCode(f);
    }

    const terms = {};
    for (const [key, term] of [["value", "value"], ["kind", "kind"], ["up", "next up"], ["down", "next down"], ["spacing", "spacing here"], ["relative", "spacing / value"], ["largest", "largest"], ["smallest", "smallest > 0"], ["typed", "rounded"], ["error", "relative error"], ["beyond", "overflow"]]) {
      const box = node("div", { class: key === "beyond" ? "rooflab-whole" : "" });
      terms[key] = node("dd", { "data-fact": key });
      box.append(node("dt", {}, term), terms[key]);
      facts.append(box);
    }

    // The number line. The text keeps its size, so a narrow place gets a smaller drawing and not a shrunken one.
    const BOX = narrow ? { width: 400, left: 52, right: 14 } : { width: 680, left: 60, right: 18 };
    const ROW = 66;
    const title = svg("title", { id: `${uid}-title` });
    let builtLine = "";
    let place = null;
    let onAxis = null;
    let rows = [];
    let typedLine = null;
    function buildLine(format) {
      const shown = Object.keys(formats).filter((each) => width(formats[each]) === 8 || each === format);
      if (shown.join() === builtLine) return;
      builtLine = shown.join();
      const small = (f) => decode(f, 1);
      const low = Math.floor(Math.log10(Math.min(...shown.map((each) => small(formats[each])))));
      const high = Math.ceil(Math.log10(Math.max(...shown.map((each) => decode(formats[each], topCode(formats[each]))))));
      onAxis = (size) => size >= 10 ** low && size <= 10 ** high;
      place = (size) => BOX.left + ((Math.log10(size) - low) / (high - low)) * (BOX.width - BOX.left - BOX.right);
      const at = (size) => place(size).toFixed(2);
      const bottom = 6 + ROW * shown.length;
      const height = bottom + 42;
      chart.setAttribute("viewBox", `0 0 ${BOX.width} ${height}`);
      chart.replaceChildren(title);
      const grid = svg("g", { class: "rooflab-grid" });
      const step = [1, 2, 5, 10, 20].find((each) => ((high - low) / each) * (narrow ? 30 : 45) <= BOX.width - BOX.left - BOX.right);
      for (let e = low; e <= high; e++) {
        if (e % step !== 0) continue;
        grid.append(svg("line", { x1: at(10 ** e), x2: at(10 ** e), y1: 4, y2: bottom }));
        grid.append(svg("text", { x: at(10 ** e), y: bottom + 17, "text-anchor": "middle" }, power(10, e)));
      }
      grid.append(svg("text", { x: (BOX.left + BOX.width - BOX.right) / 2, y: bottom + 36, "text-anchor": "middle" }, "magnitude of the value, logarithmic"));
      chart.append(grid);
      rows = shown.map((name, index) => {
        const f = formats[name];
        const top = 6 + ROW * index;
        const g = svg("g", { class: "rooflab-row", "data-row": name });
        g.append(svg("text", { x: 4, y: top + 34, class: "rooflab-name" }, name));
        const [least, most] = [small(f), decode(f, topCode(f))];
        // Both ends by name; in one text where the format's range is short on this axis.
        const label = (px, anchor, text) => g.append(svg("text", { x: px.toFixed(2), y: top + 11, "text-anchor": anchor }, text));
        if (place(most) - place(least) > 120) {
          label(place(least), "start", show(least, 3));
          label(place(most), "end", show(most, 5));
        } else label((place(least) + place(most)) / 2, "middle", `${show(least, 3)} to ${show(most, 5)}`);
        if (width(f) === 8) {
          // One tick a value; longer ones where an octave begins.
          const paths = { subnormal: "", normal: "" };
          for (let code = 1; code <= topCode(f); code++) {
            const { e, m } = fields(f, code);
            paths[e ? "normal" : "subnormal"] += `M${at(decode(f, code))} ${top + (e && m === 0 ? 15 : 21)}V${top + 40}`;
          }
          for (const [kind, d] of Object.entries(paths)) g.append(svg("path", { class: `rooflab-tick rooflab-${kind}`, d }));
        } else {
          // A box for each octave of subnormals, the fainter the fewer values it holds; one for all normal numbers.
          const box = (kind, low, high, many, share) =>
            g.append(svg("rect", { class: `rooflab-band rooflab-${kind}`, x: at(low), width: (place(high) - place(low)).toFixed(2), y: top + 18, height: 22, "fill-opacity": (0.9 * share).toFixed(3), "data-count": many }));
          for (let bits = 0; bits < f.mantissa; bits++) box("subnormal", least * 2 ** bits, least * 2 ** (bits + 1), 2 ** bits, (1 + bits) / (1 + f.mantissa));
          box("normal", least * 2 ** f.mantissa, most, topCode(f) + 1 - 2 ** f.mantissa, 1);
        }
        const mark = svg("g", { class: "rooflab-mark" });
        const text = svg("text", { y: 21 });
        mark.append(svg("line", { y1: -27, y2: 2 }), svg("path", { d: "M0 1L6 11H-6Z" }), text);
        g.append(mark);
        chart.append(g);
        return { name, f, top, mark, text };
      });
      typedLine = svg("line", { class: "rooflab-typed", y1: 4, y2: bottom });
      chart.append(typedLine);
    }

    function drawLine(state, result) {
      buildLine(state.format);
      const number = state.typed === "" ? result.value : result.typed;
      const own = (name) => name === state.format;
      for (const { name, f, top, mark, text } of rows) {
        const value = own(name) ? result.value : decode(f, encode(f, number, state.saturate));
        // Zero lies left of any logarithmic axis, and what is not finite right of it.
        const px = value === 0 ? BOX.left - 6 : Number.isFinite(value) ? place(Math.abs(value)) : BOX.width - BOX.right + 6;
        const end = px > BOX.width / 2;
        mark.setAttribute("transform", `translate(${px.toFixed(2)} ${top + 40})`);
        mark.classList.toggle("rooflab-own", own(name));
        mark.dataset.value = Object.is(value, -0) ? "-0" : String(value);
        text.setAttribute("x", end ? -9 : 9);
        text.setAttribute("y", 12);
        text.setAttribute("text-anchor", end ? "end" : "start");
        text.textContent = show(value);
      }
      const visible = state.typed !== "" && onAxis(Math.abs(number));
      typedLine.setAttribute("visibility", visible ? "visible" : "hidden");
      if (visible) for (const end of ["x1", "x2"]) typedLine.setAttribute(end, place(Math.abs(number)).toFixed(2));
      title.textContent = `Number line with a logarithmic axis: ${rows.map((row) => `${row.name} has values from ${show(decode(row.f, 1), 3)} to ${show(decode(row.f, topCode(row.f)))}, here ${row.text.textContent}`).join("; ")}.`;
    }

    function formula(f, r) {
      const tag = (name, ...inner) => `<${name}>${inner.join("")}</${name}>`;
      const mn = (value) => tag("mn", value);
      const mo = (value) => tag("mo", value);
      const paren = (value) => `<mo stretchy="false">${value}</mo>`;
      const sign = (s) => tag("msup", tag("mrow", paren("("), `<mo form="prefix">−</mo>`, mn(1), paren(")")), s);
      const line = (s, e, lead, m, scale) =>
        sign(s) + mo("·") + tag("msup", mn(2), e) + mo("·") + mo("(") + mn(lead) + mo("+") + tag("mfrac", m, scale) + mo(")");
      if (!r.finite) {
        const why = f.infinity ? `The exponent's bits are all 1, and the mantissa is ${r.m === 0 ? "0: infinity" : "not 0: NaN"}.` : "All bits after the sign are 1: NaN, the only one. There is no infinity.";
        return `<p>${why}</p>`;
      }
      const small = r.e === 0;
      const mi = (name) => tag("mi", name);
      const general = line(mi("s"), tag("mrow", small ? mn(1) : mi("e"), mo("−"), mi("bias")), small ? 0 : 1, mi("m"), tag("msup", mn(2), mi("M")));
      const numbers = line(mn(r.s), tag("mrow", mn(small ? 1 : r.e), mo("−"), mn(f.bias)), small ? 0 : 1, mn(r.m), mn(2 ** f.mantissa));
      const note = small ? "e = 0: no leading 1, and the exponent stays that of e = 1." : "";
      return `<div><math>${general}</math></div><div><math>${mo("=")}${numbers}</math> <span>${equals(r.value)} ${show(r.value)}</span></div>${note ? `<p>${note}</p>` : ""}`;
    }

    function draw() {
      const state = read();
      const wrong = problem(formats, state);
      // A state that cannot be drawn leaves the last good picture and says what is wrong.
      error.hidden = !(wrong || notice);
      error.textContent = wrong || notice;
      const refused = input.value.trim() !== "" && parse(input.value) === null && Boolean(notice);
      for (const [name, value] of [["aria-invalid", "true"], ["aria-describedby", error.id]]) {
        if (refused) input.setAttribute(name, value);
        else input.removeAttribute(name);
      }
      if (wrong) return;
      const f = formats[state.format];
      const r = evaluate(f, state);
      buildBits(state.format);
      formatMenu.value = state.format;
      saturateMenu.value = String(state.saturate);
      const text = input.value.trim().replace("\u2212", "-");
      const unfinished = document.activeElement === input && text !== "" && parse(text) === null;
      if (!notice && !unfinished && text !== state.typed) input.value = state.typed;
      for (const [bit, button] of toggles) {
        const on = (state.code >> bit) & 1;
        button.textContent = on;
        button.setAttribute("aria-pressed", on === 1);
      }
      says.sign.textContent = `s = ${r.s}`;
      says.exponent.textContent = `e = ${r.e}, bias ${f.bias}`;
      says.mantissa.textContent = `m = ${r.m} of ${2 ** f.mantissa}`;
      const rank = r.finite ? rankOf(f, state.code) : r.s ? slider.min : slider.max;
      if (Number(slider.value) !== Number(rank)) slider.value = rank;
      output.textContent = show(r.value);
      slider.setAttribute("aria-valuetext", r.finite ? show(r.value) : `${show(r.value)}, not a finite value`);

      const none = "none";
      const next = (value, sign) => (Number.isFinite(value) ? `${show(value)} (${sign}${show(Math.abs(value - r.value))})` : `none; ${state.saturate ? `saturates at ${show(r.value)}` : `beyond is ${sign === "-" && r.beyond === "∞" ? "-∞" : r.beyond}`}`);
      const relative = r.spacing / Math.abs(r.value);
      const from = `a magnitude ${r.limitIn ? `above ${show(r.limit)}` : `from ${show(r.limit)} on`} becomes`;
      const texts = {
        value: `${show(r.value)}, code ${hex(f, state.code)}`,
        kind: r.kind,
        up: r.finite ? next(r.up, "+") : none,
        down: r.finite ? next(r.down, "-") : none,
        spacing: r.finite ? stepText(r.spacingPower) : none,
        relative: r.finite && r.value !== 0 ? `${show(100 * relative, 3)} %` : "none",
        largest: show(r.largest),
        smallest: `${show(decode(f, 1))}; normal ${show(decode(f, 1 << f.mantissa))}`,
        beyond: `${from} ${r.beyond}, or ${show(r.largest)} when saturating`,
        typed: state.typed === "" ? "nothing typed" : `${state.typed} becomes ${show(r.value)}`,
        error: state.typed === "" ? "nothing typed" : Number.isFinite(r.error) ? `${show(100 * r.error, 3)} %` : "none",
      };
      for (const [key, text] of Object.entries(texts)) if (terms[key].textContent !== text) terms[key].textContent = text;

      const sort = r.kind === "normal" || r.kind === "subnormal" ? `, a ${r.kind} number` : r.kind.endsWith("zero") ? `, ${r.kind}` : "";
      const how = !r.overflows ? `relative error ${texts.error}` : `it is beyond the largest value, ${show(r.largest)}${state.saturate ? ", where this conversion saturates" : ""}`;
      readout.textContent = state.typed === "" ? `${state.format}: ${show(r.value)}${sort}.` : `${state.format}: ${state.typed} becomes ${show(r.value)}${sort}; ${how}.`;
      math.innerHTML = formula(f, r);
      drawLine(state, r);
      legend.textContent =
        "Each tick is a positive value, a longer one begins an octave" + (width(f) === 8 ? "" : `; ${state.format} has too many for ticks, so they are a band, fainter where there are fewer`) + ". Coloured: subnormals. Filled mark: the value; hollow: the same number in the other format." + (state.typed === "" ? "" : " Dashed: the typed number.");
      if (isStatic) link.href = toFragment(formats, state);
    }

    // One redraw a frame, however many traits change at once.
    const schedule = oncePerFrame(draw);

    function adopt(fragment) {
      const given = fromFragment(fragment);
      if (!given) return;
      const next = { ...initial, typed: "", ...given.state };
      const wrong = given.error ?? problem(formats, next);
      if (wrong) {
        notice = `${wrong}. Showing the last good state.`;
        schedule();
      } else {
        // A typed number says which code it is.
        if (next.typed !== "") next.code = encode(formats[next.format], parse(next.typed), next.saturate);
        set(next);
      }
    }

    el.replaceChildren(root);
    draw();
    return follow(model, FIELDS, schedule, isStatic, adopt);
  }

  return { render, decode, encode, evaluate, parse, show };
})();
