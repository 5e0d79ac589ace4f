// What an annotator has chosen for this browser.

const DEFAULTS = { advance: "on", keys: "on", theme: "auto" };

export function setting(name) {
  try {
    return localStorage.getItem(`stepmark:set:${name}`) ?? DEFAULTS[name];
  } catch {
    return DEFAULTS[name];
  }
}

export function choose(name, value) {
  try {
    localStorage.setItem(`stepmark:set:${name}`, value);
  } catch {
    // A full storage is told of where it matters: at the changes that are not sent yet.
  }
  if (name === "theme") applyTheme();
}

/** Light, dark, or as the system likes it. */
export function applyTheme() {
  const theme = setting("theme");
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}
