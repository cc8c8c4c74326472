// The view of a server's recent requests.

import { fullAccount } from "./account.js";
import { make } from "./dom.js";
import { Recent } from "./recent.js";
import { duration, number, spoken } from "./words.js";

const cells = (request) => [
  make("td", {}, spoken(request.endpoint)),
  make("td", {}, make("span", { class: `outcome ${request.outcome ?? "runs"}` }, spoken(request.outcome ?? request.state))),
  make("td", { class: "number" }, duration(request.seconds)),
  make("td", { class: "number" }, duration(request.time_to_first_token)),
  make("td", { class: "number" }, `${number(request.prompt_tokens)} + ${number(request.output_tokens)}`),
  make("td", { title: request.verdict.sentence }, spoken(request.verdict.cause)),
];

export const requests = new Recent({
  cells,
  account: (told) => [fullAccount(told)],
  isOver: (told) => told.outcome !== null,
  hint: "Choose a request to see where its time went.",
  none: "Nothing has come yet that generates or embeds; ask something in the playground.",
});
