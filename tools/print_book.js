// Run by print_book.py in Chromium, inside a page of the built site. Makes one document of all pages, ready to print.

const HOME = "https://site.invalid/"; // any host: it tells the site's own links from the others

/** Replace the body by all pages. `pages` holds {name, html} in the book's order, the index first. */
async function mergeForPrint(pages) {
  document.documentElement.dataset.theme = "light";
  const names = new Set(pages.map(({ name }) => name));
  const sections = pages.map(({ name, html }) => printSection(name, html, names));
  document.body.replaceChildren(sections[0], contents(sections), ...sections.slice(1));
  document.body.className = "print-book";
  await MathJax.startup.promise;
  await MathJax.typesetPromise();
  await document.fonts.ready;
}

function printSection(name, html, names) {
  const page = name.replace(/\.html$/, "");
  const article = new DOMParser().parseFromString(html, "text/html").querySelector("article");
  for (const each of article.querySelectorAll(".headerlink, button, .toctree-wrapper, script")) each.remove();
  for (const each of article.querySelectorAll("[id]")) {
    if (!each.closest("svg")) each.id = `${page}--${each.id}`; // those of figures are unique already
  }
  for (const link of article.querySelectorAll("a[href]")) keepLinkInside(link, name, names);
  for (const caption of article.querySelectorAll(".rooflab-explorer caption")) {
    caption.textContent = caption.textContent.replace(/[^.]* needs? JavaScript\.$/, " The page on the web lets you change this.");
  }
  const section = element("section", { id: page });
  section.append(...article.childNodes);
  openCode(section);
  gatherAnswers(section, page);
  return section;
}

/** Let a link to a page lead to its place in this document, and show the path of a file that is not in it. */
function keepLinkInside(link, name, names) {
  const url = new URL(link.getAttribute("href"), HOME + name);
  if (!url.href.startsWith(HOME)) return showAddress(link, url.href);
  const target = url.pathname.slice(1);
  if (names.has(target)) {
    const place = decodeURIComponent(url.hash.slice(1));
    link.setAttribute("href", `#${target.replace(/\.html$/, "")}${place && `--${place}`}`);
    return;
  }
  link.replaceWith(...link.childNodes, " (", element("code", { textContent: target }), ")");
}

/** Let who reads on paper see where a link leads. */
function showAddress(link, address) {
  const text = link.textContent.trim();
  if (text === address || address.startsWith("https://doi.org/")) return;
  if (address.includes(text)) link.textContent = address; // the theme shortens those of GitHub
  else link.append(element("span", { className: "print-address", textContent: ` (${address})` }));
}

/** Show the source of cells that a page shows on a click. */
function openCode(section) {
  for (const details of section.querySelectorAll("details.hide")) {
    details.querySelector("summary").remove();
    details.replaceWith(...details.childNodes);
  }
}

/** Move what a page hides until it is opened to the end of its section, so that it is not read with its question. */
function gatherAnswers(section, page) {
  const hides = ".predict, details";
  const hidden = [...section.querySelectorAll(hides)].filter((each) => !each.parentElement.closest(hides));
  if (!hidden.length) return;
  const answers = element("div", { className: "print-answers" });
  answers.append(element("h2", { id: `${page}--print-answers`, textContent: "Answers of this section" }));
  hidden.forEach((box, index) => {
    const [here, there] = [`${page}--question-${index + 1}`, `${page}--answer-${index + 1}`];
    const answer = element("div");
    const [name, ...content] = box.matches(".predict") ? takeChoices(box) : takeContent(box);
    const heading = element("h3", { id: there });
    heading.append(`${name} (question on `, linkTo(here, "page"), ")");
    answer.append(heading, ...content);
    answers.append(answer);
    const question = element("p", { className: "print-question", id: here });
    question.append(`${name}: `, linkTo(there, "page"));
    if (box.matches(".predict")) box.append(question);
    else box.replaceWith(question);
  });
  section.append(answers);
}

/** Leave the choices of a question as a list; return a name and, of each choice, the words and the reason. */
function takeChoices(box) {
  const list = element("ul");
  const reasons = [...box.querySelectorAll("details")].flatMap((choice) => {
    const summary = choice.querySelector("summary");
    const item = element("li");
    item.append(...summary.cloneNode(true).childNodes);
    list.append(item);
    const words = element("h4");
    words.append(choice.matches(".predict-right") ? "Right: " : "Not: ", ...summary.childNodes);
    summary.remove();
    choice.remove();
    return [words, ...choice.childNodes];
  });
  box.append(list);
  return ["The answer to the question", ...reasons];
}

function takeContent(details) {
  const summary = details.querySelector("summary");
  summary.remove();
  for (const inner of details.querySelectorAll("details")) inner.open = true;
  return [summary.textContent.trim(), ...details.childNodes];
}

function element(tag, properties = {}) {
  return Object.assign(document.createElement(tag), properties);
}

/** Return a link whose text ends with a page number, which setPageNumbers fills in. */
function linkTo(id, text) {
  const link = element("a", { href: `#${id}` });
  const number = element("span", { className: "print-page", textContent: "000" });
  number.dataset.for = id;
  link.append(`${text} `, number);
  return link;
}

function contents(sections) {
  const nav = element("nav", { id: "print-contents", className: "print-contents" });
  nav.append(element("h1", { textContent: "Contents" }));
  for (const section of sections) {
    for (const heading of section.querySelectorAll("h1, h2")) {
      const entry = element("p", { className: `print-${heading.localName}` });
      entry.append(linkTo(heading.id || heading.parentElement.id, heading.textContent));
      nav.append(entry);
    }
  }
  return nav;
}

/** Fill in the numbers of the pages on which places begin: {id: number}. */
function setPageNumbers(numbers) {
  for (const span of document.querySelectorAll(".print-page")) span.textContent = numbers[span.dataset.for] ?? "?";
}

/** Shrink what is too wide, down to the smallest size; return what the paper would still cut off, its HTML each. */
function fitAndFindCut(smallest_px) {
  const width = document.documentElement.clientWidth;
  for (const box of document.querySelectorAll("table, mjx-container[display='true']")) {
    shrink(box, smallest_px, () => {
      const inner = [...box.querySelectorAll("td, th, mjx-math")];
      return Math.max(...[box, ...inner].map((each) => each.getBoundingClientRect().right)) > width + 0.5;
    });
  }
  for (const listing of document.querySelectorAll(".cell_input pre, .highlight-python pre")) {
    listing.style.whiteSpace = "pre"; // to see how wide it would be; print.css wraps a line that stays too long
    shrink(listing, smallest_px, () => listing.scrollWidth > listing.clientWidth);
    listing.style.whiteSpace = "";
  }
  const seen = [...document.body.querySelectorAll("*")].filter((each) => !each.closest("svg *, mjx-assistive-mml"));
  const cut = (each) => {
    const hidden = getComputedStyle(each).overflowX !== "visible" && each.scrollWidth > each.clientWidth + 1;
    return (hidden && each.clientWidth > 1) || each.getBoundingClientRect().right > width + 1;
  };
  return seen.filter(cut).map((each) => each.outerHTML.slice(0, 200));
}

function shrink(box, smallest_px, tooWide) {
  for (let size = parseFloat(getComputedStyle(box).fontSize); size > smallest_px && tooWide(); ) {
    size = Math.max(size - 0.5, smallest_px);
    box.style.fontSize = `${size}px`;
  }
}
