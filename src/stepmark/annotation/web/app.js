// Starts the page: who is this, which page do they want, and what is still unsent from the last visit.

import { DecidePage } from "./decide.js";
import { button, make, nothing, say, visible } from "./dom.js";
import { showHelp } from "./keys.js";
import { LabelPage } from "./label.js";
import { DisputesPage, MinePage, ProjectPage } from "./lists.js";
import { Failure, Outbox, ask, token } from "./server.js";

const PAGES = { label: LabelPage, item: LabelPage, mine: MinePage, project: ProjectPage, disputes: DisputesPage, dispute: DecidePage };
const WAYS = [["#/label", "Label", /^#\/(label|item)/], ["#/mine", "My solutions", /^#\/mine/]];
const ADMINS = [["#/disputes", "Disagreements", /^#\/dispute/], ["#/project", "Project", /^#\/project/]];

/** What stands above every page: the ways, the progress, and who this is. */
class Shell {
  constructor(place, me) {
    this.bar = make("i");
    this.done = make("span", { class: "note" });
    this.ways = [...WAYS, ...(me.admin ? ADMINS : [])].map(([href, words, isHere]) => [make("a", { href }, words), isHere]);
    document.title = `${visible(me.project.name)} – stepmark`;
    const when = new Set([me.project.mode, "labelling", me.project.allow_neutral && "neutral", me.project.error_types.length && "types", me.project.help.show !== "never" && "help"]);
    place.replaceChildren(
      make("strong", { class: "brand" }, visible(me.project.name)),
      make("nav", { class: "ways", aria: { label: "Pages" } }, this.ways.map(([way]) => way)),
      make("div", { class: "progress" }, make("div", { class: "meter" }, this.bar), this.done),
      make("div", { class: "who" }, make("span", { class: "note" }, visible(me.name)), button("?", () => showHelp(me.project, when), { class: "quiet", aria: { label: "Help: keys" } })),
    );
    // Where the rail of a narrow window stands.
    new ResizeObserver(() => document.body.style.setProperty("--head", `${place.offsetHeight}px`)).observe(place);
    this.progress(me.progress);
  }

  here(hash) {
    for (const [way, isHere] of this.ways) {
      if (isHere.test(hash)) way.setAttribute("aria-current", "page");
      else way.removeAttribute("aria-current");
    }
  }

  progress({ submitted, of }) {
    this.bar.style.setProperty("width", of ? `${(100 * submitted) / of}%` : "0");
    this.done.textContent = `${submitted} of ${of}`;
    this.bar.closest(".progress").hidden = !of;
  }
}

const main = document.getElementById("main");
const away = ({ message }) => say(`${visible(message)} Trying again.`, { shown: true, bad: true });

async function start() {
  if (!token()) return main.replaceChildren(nothing("Open your link", "Each annotator has a link of their own; the one who runs this project makes it: stepmark annotate link PROJECT NAME"));
  const me = await ask("/api/me", ({ message }) => (main.firstElementChild.textContent = message));
  const shell = new Shell(document.getElementById("top"), me);
  let page = null;
  const mine = (entry) => page && page.item === entry.item && Boolean(entry.deciding) === page instanceof DecidePage;
  const outbox = new Outbox(me.name, {
    state: () => page?.state?.(),
    answered: (entry, state) => mine(entry) && page.answered(entry, state),
    refused: (entry, failure) => (mine(entry) ? page.refused(failure) : say(`A click was refused: ${failure.message}`, { shown: true, bad: true })),
  });
  const around = { main, me, outbox, shell, away };

  async function route() {
    const [, name = "", id] = /^#\/([a-z]*)(?:\/(.*))?$/.exec(location.hash) ?? [];
    if (token() && !PAGES[name]) return void (location.hash = "#/label");
    const wanted = id === undefined ? null : decodeURIComponent(id);
    if (name === "item" && page?.item === wanted) return undefined;
    page?.stop?.();
    page = new PAGES[name](around);
    scrollTo({ top: 0, behavior: "instant" });
    shell.here(location.hash);
    return page.open(wanted);
  }

  addEventListener("hashchange", () => (/^#[\w-]{20,}$/.test(location.hash) ? location.reload() : route().catch(failed)));
  await outbox.flush();
  return route();
}

function failed(failure) {
  if (!(failure instanceof Failure)) throw failure;
  main.replaceChildren(nothing(failure.status === 401 ? "This link is not valid" : "This did not work", failure.message));
}

start().catch(failed);
