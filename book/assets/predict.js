// A question is committed to before its answer shows. Without this script each choice unfolds on its own.
// The choice stays in this browser: it goes into localStorage, and no request is made.
(() => {
  const KEY = "across-the-ridge:";

  // A browser may refuse storage, even to be asked for it; then a choice lasts as long as the page.
  function stored(id) {
    try {
      return localStorage.getItem(KEY + id);
    } catch {
      return null;
    }
  }

  function store(id, label) {
    try {
      if (label === null) localStorage.removeItem(KEY + id);
      else localStorage.setItem(KEY + id, label);
      return true;
    } catch {
      return false;
    }
  }

  function element(tag, properties, ...children) {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  }

  function labelOf(choice) {
    return choice.querySelector("summary").textContent;
  }

  function ask(box) {
    const id = box.id;
    const choices = [...box.querySelectorAll(":scope > .predict-choice")];
    const question = box.querySelector(".predict-question");
    question.id = `${id}-question`;

    const radios = choices.map((choice) =>
      element("input", { type: "radio", name: id, value: labelOf(choice), autocomplete: "off" }),
    );
    const commit = element("button", { type: "submit", disabled: true }, "Commit");
    const form = element(
      "form",
      { className: "predict-form" },
      element(
        "fieldset",
        {},
        element("legend", {}, "Commit to one answer; then the reasons show."),
        ...radios.map((radio) => element("label", {}, radio, element("span", {}, radio.value))),
      ),
      commit,
    );
    form.firstChild.setAttribute("aria-describedby", question.id);

    const said = element("p", { className: "predict-said", tabIndex: -1 });
    const back = element("button", { type: "button" }, "Take it back");
    const verdict = element("div", { className: "predict-verdict" }, said, back);
    question.after(form, verdict);

    function show(label, kept) {
      const committed = label !== null;
      const chosen = choices.find((choice) => labelOf(choice) === label);
      form.hidden = committed;
      verdict.hidden = !committed;
      for (const choice of choices) {
        choice.hidden = !committed;
        choice.open = choice === chosen;
        choice.classList.toggle("predict-chosen", choice === chosen);
      }
      for (const radio of radios) radio.checked = radio.value === label;
      commit.disabled = !committed;
      if (!committed) return;
      const right = chosen.classList.contains("predict-right");
      said.textContent =
        `You committed to “${label}”. ` +
        (right ? "That is right." : "That is not so: read why below, then open the others.") +
        (kept ? "" : " This browser refuses to keep it, so a reload forgets it.");
    }

    form.addEventListener("change", () => (commit.disabled = false));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const label = radios.find((radio) => radio.checked)?.value;
      if (label === undefined) return;
      show(label, store(id, label));
      said.focus(); // the button that had the focus is gone
    });
    back.addEventListener("click", () => {
      store(id, null);
      show(null);
      radios[0].focus();
    });

    // A choice that a new edition of the book no longer offers is not shown as an answer to it.
    const before = stored(id);
    show(choices.some((choice) => labelOf(choice) === before) ? before : null, true);
  }

  document.querySelectorAll(".predict[id]").forEach(ask);
})();
