// Items in, labels out.

import { call } from "./api.js";
import { count, make, page, visible } from "./dom.js";
import { tried } from "./people.js";

const FORMATS = {
  stepmark: ["stepmark records", "Every judgement with its author and time, for training and conversion."],
  trl: ["TRL", "prompt, completions, labels: what TRL's trainers and ours read."],
  prm800k: ["PRM800K", "The shape of OpenAI's release."],
  "math-shepherd": ["Math-Shepherd", "Steps marked + and − in one text."],
  processbench: ["ProcessBench", "Steps and the index of the first wrong one."],
  potato: ["Potato", "instance_id, annotator, mode, steps with index and reward."],
  "who-and-when": ["Who&When", "Agents' conversations: history, mistake_agent, mistake_step, mistake_reason."],
};

export class ItemsPage {
  item = null;

  constructor({ main }) {
    this.main = main;
  }

  open() {
    this.main.replaceChildren(
      page(
        "Items and export",
        null,
        make("h2", {}, "Add items"),
        make("p", { class: "note" }, "A file in any format that stepmark convert reads, plain solutions, or agents' traces. Items that are there already stay as they are."),
        this.#upload(),
        make("h2", {}, "Export"),
        make("p", { class: "note" }, "Submitted answers and decisions up to now."),
        make(
          "div",
          { class: "exports" },
          Object.entries(FORMATS).map(([name, [title, words]]) => make("a", { href: `/api/admin/export?format=${name}`, download: "" }, make("b", {}, title), make("span", { class: "note" }, words))),
        ),
        make("h2", {}, "Backup"),
        make("p", { class: "note" }, "All of the project in one file, consistent also while people work: accounts, items, every change, decisions."),
        make("p", {}, make("a", { class: "go", href: "/api/admin/backup", download: "" }, "Download a backup")),
      ),
    );
  }

  #upload() {
    const file = make("input", { type: "file", required: true, accept: ".jsonl,.json,.gz" });
    const said = make("p", { class: "trouble", attr: { role: "status" } });
    const send = make("button", { class: "strong" }, "Add");
    const form = make("form", { class: "form" }, make("label", {}, "File", file), send);
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      send.disabled = true;
      const chosen = file.files[0];
      const answer = await tried(said, () => call("POST", `/api/admin/items?name=${encodeURIComponent(chosen.name)}`, chosen));
      send.disabled = false;
      if (answer === null) return;
      said.className = "trouble good";
      said.textContent = `${count(answer.items, "item")} in ${visible(chosen.name)}, ${answer.changed} of them new or changed.`;
      form.reset();
    });
    return make("div", {}, form, said);
  }
}

