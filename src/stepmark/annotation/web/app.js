// Starts the page: who is this, which page do they want, and what is still unsent from the last visit.

import { Failure, call, onTrouble, setSession } from "./api.js";
import { say } from "./dom.js";
import { LabelPage } from "./label.js";
import { joinPage, loginAgain, loginPage } from "./login.js";
import { Outbox } from "./outbox.js";
import { Shell } from "./shell.js";
import { Clock } from "./work.js";

const main = document.getElementById("main");
const HOME = { annotator: "#/label", adjudicator: "#/disputes", admin: "#/progress" };
// Who is alone has come to label.
const homeOf = (me) => (me.alone ? "#/label" : HOME[me.role]) ?? "#/label";

async function whoami() {
  try {
    return await call("GET", "/api/me");
  } catch (failure) {
    if (!(failure instanceof Failure) || failure.status !== 401) throw failure;
    return null;
  }
}

async function start() {
  if (location.pathname === "/join") return joinPage(main);
  let me;
  for (;;) {
    try {
      me = await whoami();
      break;
    } catch (failure) {
      main.firstElementChild.textContent = failure.message;
      await new Promise((done) => setTimeout(done, 2000));
    }
  }
  if (!me) return loginPage(main);
  setSession(me);
  const relogin = async () => {
    await loginAgain(me.name);
    const again = await whoami();
    if (again && again.name !== me.name) location.reload();
    if (again) setSession(again);
  };
  onTrouble({ login: relogin, offline: (isOffline) => isOffline && say("The server does not answer. Trying again.", { shown: true, bad: true }) });

  const shell = new Shell(document.getElementById("top"), me);
  let page = null;
  const outbox = new Outbox(me.name, {
    state: (told) => {
      shell.paint(outbox, page?.item ?? null);
      page?.state?.(told);
    },
    acknowledged: (entry) => page?.acknowledged?.(entry),
    clash: (item) => page?.trouble?.(item),
    refused: ({ item }) => page?.trouble?.(item),
    login: relogin,
  });
  const around = { main, me, outbox, shell, clock: new Clock() };

  async function route() {
    const [, name, id] = /^#\/([a-z]+)(?:\/(.*))?$/.exec(location.hash) ?? [];
    if (!name) return void (location.hash = homeOf(me));
    const wanted = id === undefined ? null : decodeURIComponent(id);
    if (name === "item" && page?.item === wanted) return undefined;
    page?.stop?.();
    page = null;
    main.className = `page-${name}`;
    shell.here(location.hash);
    if (name === "label" || name === "item") {
      page = new LabelPage(around);
      await page.open(wanted);
    } else {
      page = await pageOf(name);
      if (!page) return void (location.hash = homeOf(me));
      await page.open(wanted);
    }
    outbox.flush();
    return undefined;
  }

  async function pageOf(name) {
    if (name === "mine") return new (await import("./lists.js")).MinePage(around);
    if (name === "disputes") return new (await import("./lists.js")).DisputesPage(around);
    if (name === "dispute") return new (await import("./decide.js")).DecidePage(around);
    if (["progress", "agreement", "people", "items", "audit"].includes(name)) return (await import("./admin.js")).adminPage(name, around);
    return null;
  }

  addEventListener("hashchange", () => route().catch(failed));
  await outbox.flush();
  return route();
}

function failed(error) {
  if (error instanceof Failure) main.replaceChildren(Object.assign(document.createElement("p"), { className: "nothing", textContent: error.message }));
  else throw error;
}

start().catch(failed);
