// A formula or drawing wider than its column scrolls in its own box, so the keyboard must reach that box.
// The theme does the same for listings and outputs.
function markScrollingBoxes() {
  for (const box of document.querySelectorAll('mjx-container[display="true"], .rooflab-figure')) {
    if (box.scrollWidth > box.clientWidth) {
      box.tabIndex = 0;
    } else {
      box.removeAttribute("tabindex");
    }
  }
}

window.addEventListener("load", async () => {
  await window.MathJax?.startup?.promise;
  markScrollingBoxes();
  window.addEventListener("resize", markScrollingBoxes);
});

// The theme leaves the head of the sidebar, with the book's title, outside the page's landmarks.
const sidebar = document.getElementById("pst-primary-sidebar");
sidebar?.setAttribute("role", "navigation");
sidebar?.setAttribute("aria-label", "Book");
