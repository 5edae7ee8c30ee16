// A formula wider than its column scrolls in its own box, so the keyboard must reach that box.
// The theme does the same for listings and outputs.
function markScrollingFormulas() {
  for (const box of document.querySelectorAll('mjx-container[display="true"]')) {
    if (box.scrollWidth > box.clientWidth) {
      box.tabIndex = 0;
    } else {
      box.removeAttribute("tabindex");
    }
  }
}

window.addEventListener("load", async () => {
  await window.MathJax?.startup?.promise;
  markScrollingFormulas();
  window.addEventListener("resize", markScrollingFormulas);
});
