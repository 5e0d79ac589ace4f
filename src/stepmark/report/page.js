// Renders the formulas of a card when it comes near the window, so that thousands of solutions open at once.
"use strict";
(() => {
  const settings = { throwOnError: false, trust: false, strict: "ignore", errorColor: "inherit", maxExpand: 200, maxSize: 20 };

  // A browser may break the line between a formula and the full stop after it; inside its last box it may not.
  function keepTogether(formula) {
    const next = formula.nextSibling;
    const marks = next?.nodeType === Node.TEXT_NODE && /^[.,;:!?)\]]+/.exec(next.data)?.[0];
    const box = [...formula.querySelectorAll(".base")].pop();
    if (!marks || !box) return;
    const after = document.createElement("span");
    after.className = "after";
    after.textContent = marks;
    box.append(after);
    next.deleteData(0, marks.length);
  }

  function render(place) {
    for (const formula of place.querySelectorAll(".tex:not([data-done])")) {
      const source = formula.textContent;
      formula.dataset.done = "";
      // Fresh macros each time: a \gdef in one formula must not change how another one is shown.
      const options = { ...settings, macros: {}, displayMode: formula.classList.contains("tex-d") };
      try {
        katex.render(source, formula, options);
        if (!options.displayMode) keepTogether(formula);
      } catch {
        formula.textContent = source;
      }
    }
  }

  const places = () => document.querySelectorAll(".ask, .card");
  const near = new IntersectionObserver(
    (seen) => {
      for (const { isIntersecting, target } of seen) {
        if (!isIntersecting) continue;
        near.unobserve(target);
        render(target);
      }
    },
    { rootMargin: "1200px" },
  );
  places().forEach((place) => near.observe(place));
  // What another script of the page puts in later it names by this event.
  addEventListener("formulas", ({ target }) => near.observe(target));
  addEventListener("beforeprint", () => places().forEach(render));
})();
