"use strict";

/* Give what packed(value, name) of the page holds: JSON, gzipped, in letters. The only global. */
async function unpack(name) {
  const letters = document.getElementById(name).textContent.trim();
  const bytes = Uint8Array.from(atob(letters), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

(() => {
  const root = document.documentElement;
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
  const collator = new Intl.Collator("en", { numeric: true });
  root.classList.add("js");

  /* ---- tables: sorted by a column, a tree stays a tree */

  function sortKey(row, column, isNumber) {
    const cell = row.cells[column];
    const given = cell.dataset.sort;
    if (!isNumber) return given ?? cell.textContent.trim();
    const number = given === undefined || given === "" ? NaN : Number(given);
    return Number.isNaN(number) ? null : number;
  }

  function order(a, b, direction) {
    if (a.key === null || b.key === null) {
      return (a.key === null) - (b.key === null) || a.place - b.place; // unknown is always last
    }
    const found = typeof a.key === "number" ? a.key - b.key : collator.compare(a.key, b.key);
    return direction * found || a.place - b.place;
  }

  function sortTable(table, column, direction) {
    const body = table.tBodies[0];
    const isNumber = table.tHead.rows[0].cells[column].classList.contains("number");
    const known = new Set([...body.rows].map((row) => row.dataset.path));
    const children = new Map();
    for (const row of body.rows) {
      const parent = known.has(row.dataset.parent) ? row.dataset.parent : undefined;
      const item = { row, key: sortKey(row, column, isNumber), place: Number(row.dataset.place) };
      if (!children.has(parent)) children.set(parent, []);
      children.get(parent).push(item);
    }
    const sorted = document.createDocumentFragment();
    const append = (parent) => {
      const items = children.get(parent) ?? [];
      for (const { row } of items.sort((a, b) => order(a, b, direction))) {
        sorted.append(row);
        if (row.dataset.path !== undefined) append(row.dataset.path);
      }
    };
    append(undefined);
    body.append(sorted);
  }

  function sortBy(button) {
    const heading = button.closest("th");
    const table = heading.closest("table");
    const first = heading.classList.contains("number") ? "descending" : "ascending";
    const other = first === "ascending" ? "descending" : "ascending";
    const wanted = heading.getAttribute("aria-sort") === first ? other : first;
    for (const each of all("thead th", table)) each.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", wanted);
    sortTable(table, heading.cellIndex, wanted === "ascending" ? 1 : -1);
  }

  function showOpenRows(table) {
    const shown = new Map(); // path -> whether its children are shown
    for (const row of table.tBodies[0].rows) {
      const { path, parent } = row.dataset;
      row.hidden = shown.get(parent) === false;
      const isFolded = all('.fold[aria-expanded="false"]', row).length > 0;
      if (path !== undefined) shown.set(path, !row.hidden && !isFolded);
    }
  }

  function setFold(button, isOpen) {
    button.setAttribute("aria-expanded", String(isOpen));
  }

  function startTables() {
    for (const table of all("table.sortable")) {
      [...table.tBodies[0].rows].forEach((row, place) => { row.dataset.place = place; });
      for (const button of all("thead th > button", table)) {
        button.addEventListener("click", () => sortBy(button));
      }
    }
    for (const table of all("table.tree")) {
      showOpenRows(table);
      table.addEventListener("click", (event) => {
        const button = event.target.closest(".fold");
        if (!button) return;
        setFold(button, button.getAttribute("aria-expanded") !== "true");
        showOpenRows(table);
      });
      for (const button of all("[data-fold]", table.closest(".foldable"))) {
        button.addEventListener("click", () => {
          all(".fold", table).forEach((each) => setFold(each, button.dataset.fold === "open"));
          showOpenRows(table);
        });
      }
    }
  }

  /* What scrolls must be reachable by keyboard, also where the browser does not see to it. */
  function startScrolling() {
    for (const each of all(".scroll")) {
      if (each.scrollWidth > each.clientWidth) each.tabIndex = 0;
    }
  }

  /* ---- light and dark, kept nowhere: the file may be opened from a mail */

  function startTheme() {
    const button = document.getElementById("theme");
    if (!button) return;
    const system = matchMedia("(prefers-color-scheme: dark)");
    const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
    const label = () => {
      button.textContent = isDark() ? "Light" : "Dark";
      button.setAttribute("aria-label", `Show the page in ${isDark() ? "light" : "dark"} colours`);
    };
    button.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      label();
    });
    system.addEventListener("change", label);
    label();
  }

  /* ---- raw values as a file */

  async function save(button) {
    const value = await unpack(button.dataset.save);
    const blob = new Blob([JSON.stringify(value, null, 2)], { type: "application/json" });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = button.dataset.file;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  /* ---- where the reader is, and paper */

  function startContents() {
    const links = new Map(all("nav.contents a").map((a) => [a.hash.slice(1), a]));
    if (!links.size || !("IntersectionObserver" in window)) return;
    const seen = new Set();
    const watcher = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        seen[isIntersecting ? "add" : "delete"](target.id);
      }
      const current = [...links.keys()].find((id) => seen.has(id));
      for (const [id, link] of links) {
        if (id === current) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      }
    }, { rootMargin: "-10% 0px -60% 0px" });
    all("main > section").forEach((each) => watcher.observe(each));
  }

  function startPrinting() {
    let opened = [];
    addEventListener("beforeprint", () => {
      opened = all("details:not([open])");
      opened.forEach((each) => { each.open = true; });
    });
    addEventListener("afterprint", () => opened.forEach((each) => { each.open = false; }));
  }

  startTables();
  startScrolling();
  startTheme();
  startContents();
  startPrinting();
  for (const button of all("button[data-save]")) {
    button.addEventListener("click", () => save(button));
  }
})();
