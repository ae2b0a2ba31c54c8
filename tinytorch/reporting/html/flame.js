"use strict";

/* The flame graph: zoom by click or Enter, back by Escape, arrow keys between boxes, search. */
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const NARROW_SHOWN = 40; // so many of narrow neighbours are shown by choosing them
  const WORD = 26; // pixels from which on a box has room for letters

  function start(blocks) {
    const frame = document.getElementById("flame");
    const about = document.getElementById("flame-about");
    const search = document.getElementById("flame-search");
    const found = document.getElementById("flame-found");
    const whole = document.getElementById("flame-whole");
    const picture = frame.querySelector("svg");
    const count = blocks.name.length;
    const end = (i) => blocks.start[i] + blocks.width[i];
    const cells = new Map(); // block -> element, for those that are drawn
    let zoomed = 0; // a block, and the part of the call that is shown
    let from = 0;
    let span = 1;
    let current = 0;
    let wanted = "";

    const isAround = (outer, i) => {
      while (i !== null && i !== outer) i = blocks.parent[i];
      return i === outer;
    };
    const matches = (i) =>
      `${blocks.name[i]} ${blocks.kind[i]}`.toLowerCase().includes(wanted);
    const words = (i) => `${blocks.name[i]} (${blocks.kind[i]}): ${blocks.about[i]}`;

    function make(tag, attributes, parent, text) {
      const made = document.createElementNS(SVG, tag);
      for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
      if (text !== undefined) made.textContent = text;
      parent.append(made);
      return made;
    }

    function drawBlock(i, left, width, pixels) {
      const box = make("svg", {
        x: `${left * 100}%`, width: `${width * 100}%`,
        y: blocks.depth[i] * blocks.row, height: blocks.row - blocks.gap,
        role: "button", tabindex: i === current ? 0 : -1,
        "aria-label": words(i), "data-block": i,
      }, picture);
      make("title", {}, box, words(i));
      const isAbove = i !== zoomed && isAround(i, zoomed);
      const faint = wanted && !matches(i) ? " dimmed" : "";
      make("rect", { class: `${blocks.colour[i]}${isAbove ? " above" : ""}${faint}` }, box);
      if (width * pixels >= WORD) {
        make("text", { x: 5, y: (blocks.row - blocks.gap) * 0.7 }, box, blocks.label[i]);
      }
      cells.set(i, box);
    }

    function drawStrip(strip, depth) {
      if (strip.right - strip.left < blocks.least) return;
      const share = ((strip.right - strip.left) * span * 100).toFixed(1);
      const said = `${strip.count} narrow ones, ${share}% of the call`;
      const box = make("svg", {
        x: `${strip.left * 100}%`, width: `${(strip.right - strip.left) * 100}%`,
        y: depth * blocks.row, height: blocks.row - blocks.gap,
        "data-first": strip.first, "data-last": strip.last, "data-about": said,
        role: "button", tabindex: 0, "aria-label": said,
      }, picture);
      make("title", {}, box, said);
      make("rect", { class: wanted && !strip.matches ? "short dimmed" : "short" }, box);
    }

    function draw() {
      const pixels = picture.clientWidth;
      const hadFocus = picture.contains(document.activeElement);
      picture.replaceChildren(picture.querySelector("title"));
      cells.clear();
      const strips = new Map(); // depth -> narrow neighbours that are drawn together
      for (let i = 0; i < count; i += 1) {
        const left = Math.max(0, (blocks.start[i] - from) / span);
        const right = Math.min(1, (end(i) - from) / span);
        if (right < left || !(isAround(zoomed, i) || isAround(i, zoomed))) continue;
        const depth = blocks.depth[i];
        const strip = strips.get(depth);
        const isNarrow = right - left < blocks.least;
        if (isNarrow && strip && left - strip.right <= blocks.least) {
          strip.right = right;
          strip.last = i;
          strip.count += 1;
          strip.matches ||= matches(i);
          continue;
        }
        if (strip) drawStrip(strip, depth);
        strips.delete(depth);
        if (isNarrow) {
          strips.set(depth, { left, right, first: i, last: i, count: 1, matches: matches(i) });
        } else {
          drawBlock(i, left, right - left, pixels);
        }
      }
      strips.forEach(drawStrip);
      if (hadFocus) focus(current);
      whole.disabled = span === 1;
    }

    function focus(i) {
      cells.get(current)?.setAttribute("tabindex", -1);
      current = cells.has(i) ? i : zoomed;
      const box = cells.get(current);
      box.setAttribute("tabindex", 0);
      box.focus({ preventScroll: true });
      about.textContent = words(current);
    }

    function zoom(i) {
      zoomed = i;
      current = i;
      from = blocks.start[i];
      span = blocks.width[i] || 1;
      draw();
      about.textContent = words(i);
    }

    function zoomIntoStrip(box, place) {
      const inside = [];
      const depth = blocks.depth[box.dataset.first];
      for (let i = Number(box.dataset.first); i <= Number(box.dataset.last); i += 1) {
        if (blocks.depth[i] === depth) inside.push(i);
      }
      const middle = Math.floor(place * inside.length);
      const first = inside[Math.max(0, middle - NARROW_SHOWN / 2)];
      const last = inside[Math.min(inside.length - 1, middle + NARROW_SHOWN / 2)];
      zoomed = blocks.parent[first] ?? 0;
      from = blocks.start[first];
      span = Math.max(end(last) - from, Number.EPSILON);
      current = zoomed;
      draw();
      about.textContent = box.dataset.about;
    }

    function neighbour(i, step) {
      const row = [...cells.keys()].filter((other) => blocks.depth[other] === blocks.depth[i]);
      return row[row.indexOf(i) + step];
    }

    function move(event) {
      const strip = event.target.closest?.("[data-first]");
      if (strip && (event.key === "Enter" || event.key === " ")) {
        event.preventDefault();
        zoomIntoStrip(strip, 0.5);
        focus(zoomed);
        return;
      }
      const i = current;
      const inside = [...cells.keys()].find((other) => blocks.parent[other] === i);
      const to = {
        ArrowLeft: () => neighbour(i, -1),
        ArrowRight: () => neighbour(i, 1),
        ArrowUp: () => blocks.parent[i],
        ArrowDown: () => inside,
      }[event.key];
      if (to) {
        const next = to();
        if (next !== undefined && next !== null) focus(next);
      } else if (event.key === "Enter" || event.key === " ") {
        zoom(i);
        focus(i);
      } else if (event.key === "Escape") {
        const isPart = span < blocks.width[zoomed];
        const back = isPart ? zoomed : (blocks.parent[zoomed] ?? 0);
        zoom(back);
        focus(back);
      } else {
        return;
      }
      event.preventDefault();
    }

    function find() {
      wanted = search.value.trim().toLowerCase();
      draw();
      if (!wanted) {
        found.textContent = "";
        return;
      }
      let share = 0;
      let number = 0;
      for (let i = 1; i < count; i += 1) {
        if (!matches(i)) continue;
        number += 1;
        // What lies in another match is in the time of that one already.
        let outer = blocks.parent[i];
        while (outer !== null && outer !== 0 && !matches(outer)) outer = blocks.parent[outer];
        if (!outer) share += blocks.width[i];
      }
      const layers = number === 1 ? "1 layer" : `${number} layers`;
      found.textContent = number ? `${layers}, ${(share * 100).toFixed(1)}% of the call` : "none";
    }

    const blockAt = (event) => event.target.closest?.("[data-block]");
    picture.addEventListener("click", (event) => {
      const strip = event.target.closest?.("[data-first]");
      if (strip) {
        const area = strip.getBoundingClientRect();
        zoomIntoStrip(strip, (event.clientX - area.left) / area.width);
        return;
      }
      const box = blockAt(event);
      if (!box) return;
      zoom(Number(box.dataset.block));
      focus(zoomed);
    });
    picture.addEventListener("pointerover", (event) => {
      const box = blockAt(event);
      const strip = event.target.closest?.("[data-first]");
      if (box) about.textContent = words(Number(box.dataset.block));
      if (strip) about.textContent = strip.dataset.about;
    });
    picture.addEventListener("focusin", (event) => {
      const box = blockAt(event);
      if (box) about.textContent = words(Number(box.dataset.block));
    });
    picture.addEventListener("keydown", move);
    search.addEventListener("input", find);
    search.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      search.value = "";
      find();
    });
    whole.addEventListener("click", () => zoom(0));
    let drawnAt = picture.clientWidth;
    new ResizeObserver(() => {
      if (picture.clientWidth !== drawnAt) {
        drawnAt = picture.clientWidth;
        draw();
      }
    }).observe(picture);
    picture.setAttribute("role", "group");
    draw();
    frame.dataset.ready = "true";
  }

  if (document.getElementById("flame")) unpack("flame-blocks").then(start);
})();
