// Dialogs that ask for what an action needs, say what the server says of it, and show a new key once.

import { Problem } from "./api.js";
import { make } from "./dom.js";

let made = 0;

/**
 * Ask; resolves to what `act(values)` resolves to, or to null where it was left. While `act` raises Problems, they are
 * shown and what was typed stays. `fields` are { name, label, note, value, type, options }; options make a choice of it,
 * and the type "checkbox" gives true or false.
 */
export function ask({ title, text = [], fields = [], action, danger = false, act }) {
  return new Promise((resolve) => {
    const inputs = fields.map(input);
    const problem = make("p", { class: "problem", role: "alert", hidden: true });
    const submit = make("button", { type: "submit", class: danger ? "danger" : null }, action);
    const cancel = make("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
    const form = make(
      "form",
      { novalidate: true },
      make("h2", { id: `dialog-${(made += 1)}` }, title),
      ...text.map((each) => make("p", {}, each)),
      make("div", { class: "fields" }, ...fields.map((field, place) => labelled(field, inputs[place]))),
      problem,
      make("div", { class: "buttons" }, cancel, submit),
    );
    const dialog = make("dialog", { class: fields.length > 4 ? "long" : null, "aria-labelledby": `dialog-${made}` }, form);
    let result = null;
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      submit.disabled = true;
      try {
        result = { given: await act(Object.fromEntries(fields.map(({ name }, place) => [name, valueOf(inputs[place])]))) };
        dialog.close();
      } catch (error) {
        if (!(error instanceof Problem)) throw error;
        problem.textContent = error.message;
        problem.hidden = false;
      } finally {
        submit.disabled = false;
      }
    });
    open(dialog, () => resolve(result?.given ?? null));
    // What cannot be taken back is not what Enter does.
    (inputs[0] ?? (danger ? cancel : submit)).focus();
  });
}

/** Show a key that nobody is shown again; resolves once the user says that it is kept. */
export function showSecret(title, secret) {
  return new Promise((resolve) => {
    const field = make("input", { class: "secret", readonly: true, value: secret, "aria-label": "The key", spellcheck: "false" });
    const said = make("p", { class: "note", role: "status" });
    const copy = async () => {
      said.textContent = (await copied(field)) ? "Copied." : "The browser does not allow it; copy what is marked.";
    };
    const dialog = make(
      "dialog",
      { "aria-label": title },
      make(
        "div",
        { class: "stacked" },
        make("h2", {}, title),
        make("p", {}, "It is shown only now: the database has no more than its hash."),
        field,
        said,
        make(
          "div",
          { class: "buttons" },
          make("button", { type: "button", onclick: copy }, "Copy"),
          make("button", { type: "button", class: "main", onclick: () => dialog.close() }, "I have kept it"),
        ),
      ),
    );
    // It is not lost by a key that was pressed too early.
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    dialog.addEventListener("keydown", (event) => event.key === "Escape" && event.preventDefault());
    open(dialog, resolve);
    field.select();
  });
}

function open(dialog, closed) {
  dialog.addEventListener("close", () => {
    dialog.remove();
    closed();
  });
  document.body.append(dialog);
  dialog.showModal();
}

/** Whether a field's text is on the clipboard; without TLS, browsers have only the old way. */
async function copied(field) {
  field.select();
  try {
    await navigator.clipboard.writeText(field.value);
    return true;
  } catch {
    return document.execCommand("copy");
  }
}

function input({ name, type = "text", value = "", options = null }) {
  made += 1;
  const common = { id: `field-${made}`, name };
  if (options !== null) return make("select", common, ...options.map((each) => make("option", {}, each)));
  if (type === "checkbox") return make("input", { ...common, type });
  return make("input", { ...common, type, value, autocomplete: "off", spellcheck: "false" });
}

function labelled({ label, note = null, type }, element) {
  const about = note === null ? null : make("small", { id: `${element.id}-note` }, note);
  if (about !== null) element.setAttribute("aria-describedby", about.id);
  const parts = [make("label", { for: element.id }, label), element, about];
  return make("div", { class: type === "checkbox" ? "field check" : "field" }, ...parts);
}

const valueOf = (element) => (element.type === "checkbox" ? element.checked : element.value.trim());
