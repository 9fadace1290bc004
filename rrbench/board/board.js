// Chooses lines: one network and its rejectors, or one rejector and its networks. Without it all lines are shown.
"use strict";
{
  const [form, which, arena, words, ranked, count] = ["choice", "which", "arena", "words", "ranked", "count"].map((id) =>
    document.getElementById(id));
  const lines = [...document.querySelectorAll("table.board > tbody")];
  const arenas = [...document.querySelectorAll("details.arena")];
  const buttons = [...document.querySelectorAll("button[data-view]")];
  let view = ""; // "", "network" or "rejector"

  const fits = (line) => {
    const text = `${line.dataset.network} ${line.dataset.rejector}`.toLowerCase();
    return (!view || line.dataset[view] === which.value)
      && (!arena.value || line.closest(".arena").id === arena.value)
      && (!ranked.checked || line.dataset.reach === "worst")
      && words.value.toLowerCase().split(/\s+/).every((word) => text.includes(word));
  };

  const show = () => {
    const isChosen = view || arena.value || ranked.checked || words.value;
    for (const line of lines) line.hidden = !fits(line);
    for (const each of arenas) {
      each.hidden = !each.querySelector(".board > tbody:not([hidden])");
      if (isChosen) each.open = true;
    }
    const shown = lines.filter((line) => !line.hidden).length;
    const what = view === "network" ? `${which.value} and its rejectors: `
      : view === "rejector" ? `${which.value} and its networks: ` : "";
    count.textContent = `${what}${shown} of ${lines.length} lines`;
    // The view is in the address, so that it can be linked to.
    const state = view ? `#${new URLSearchParams({ [view]: which.value })}` : "#";
    if (view || location.hash.includes("=")) history.replaceState(null, "", state);
  };

  const choose = (next, name) => {
    view = next;
    // In the order of the page: the best comes first.
    const names = view ? [...new Set(lines.map((line) => line.dataset[view]))] : [];
    which.replaceChildren(...names.map((each) => new Option(each)));
    which.parentElement.hidden = !view;
    if (names.includes(name)) which.value = name;
    for (const button of form.querySelectorAll("[data-view]")) {
      button.setAttribute("aria-pressed", String(button.dataset.view === view));
    }
    show();
  };

  for (const button of buttons) {
    button.hidden = false;
    button.addEventListener("click", () => {
      choose(button.dataset.view, button.dataset.which);
      if (button.dataset.which) form.scrollIntoView();
    });
  }
  form.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  const linked = new URLSearchParams(location.hash.slice(1));
  const start = ["network", "rejector"].find((each) => linked.has(each)) ?? "";
  choose(start, linked.get(start) ?? "");
}
