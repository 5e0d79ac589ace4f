// Copies the Markdown of a table. Where a browser does not allow it, the text is unfolded and selected instead.
"use strict";
(() => {
  function say(button, words) {
    const before = button.dataset.says ?? button.textContent;
    button.dataset.says = before;
    button.textContent = words;
    setTimeout(() => (button.textContent = before), 2500);
  }

  async function copy(button) {
    const folded = button.parentElement.querySelector("details");
    const text = folded.querySelector("pre");
    try {
      await navigator.clipboard.writeText(text.textContent);
      say(button, "Copied");
    } catch {
      folded.open = true;
      getSelection().selectAllChildren(text);
      say(button, "Selected, now copy it");
    }
  }

  for (const button of document.querySelectorAll("button.copy")) {
    button.hidden = false;
    button.addEventListener("click", () => copy(button));
  }
})();
