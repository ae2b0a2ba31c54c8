"use strict";

/* The time line: zoom by buttons, keys and wheel, move by dragging and arrow keys. */
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const THIN = 1.5; // pixels; thinner neighbours are drawn together
  const WORD = 24; // pixels from which on a box has room for letters
  const STEP = 1.5;
  const DEEPEST = 200; // nanoseconds; closer there is nothing to see

  function timeText(ns) {
    if (!ns) return "0 s";
    const units = [[1e3, 1, "ns"], [1e6, 1e3, "us"], [1e9, 1e6, "ms"], [Infinity, 1e9, "s"]];
    const [, unit, name] = units.find(([limit]) => Number((ns / limit).toPrecision(3)) < 1) ?? units[3];
    const digits = Number((ns / unit).toPrecision(3));
    return `${digits.toFixed(Math.max(0, 2 - Math.floor(Math.log10(digits))))} ${name}`;
  }

  const tickText = (ns) => {
    const [digits, unit] = timeText(ns).split(" ");
    return `${Number(digits)} ${unit}`;
  };

  function tickStep(span, most) {
    const rough = span / most;
    const power = 10 ** Math.floor(Math.log10(rough));
    return [1, 2, 5, 10].map((n) => n * power).find((step) => step >= rough * 0.999);
  }

  function start(spans) {
    const picture = document.querySelector(".time-line");
    const about = document.getElementById("time-about");
    const text = (column, i) => spans.texts[spans[column][i]];
    const [axis, , boxes] = picture.querySelectorAll(":scope > g");
    const height = parseFloat(picture.style.height);
    let from = 0;
    let span = spans.whole;
    let waiting = false;

    function words(i) {
      const layer = text("layer", i);
      const place = layer ? ` in ${layer}` : "";
      const kind = text("about", i);
      return `${text("name", i)}${place}: ${timeText(spans.duration[i])}${kind ? `; ${kind}` : ""}`;
    }

    function make(tag, attributes, parent, content) {
      const made = document.createElementNS(SVG, tag);
      for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
      if (content !== undefined) made.textContent = content;
      parent.append(made);
      return made;
    }

    function box(left, right, top, colour, label, said, pixels) {
      const inside = make("svg", {
        x: `${left * 100}%`, width: `${Math.max(right - left, 0.5 / pixels) * 100}%`,
        y: top, height: spans.row - spans.gap, "data-words": said,
      }, boxes);
      make("rect", { class: colour }, inside);
      if ((right - left) * pixels >= WORD && label) {
        make("text", { x: 5, y: (spans.row - spans.gap) * 0.72 }, inside, label);
      }
    }

    function drawBoxes(pixels) {
      boxes.replaceChildren();
      const thin = new Map(); // lane -> short neighbours that wait for more
      const flush = (top) => {
        const some = thin.get(top);
        thin.delete(top);
        if (!some) return;
        const one = some.count === 1;
        const said = one ? words(some.first) : `${some.count} short ones, ${timeText(some.busy)}`;
        box(some.left, some.right, top, one ? text("colour", some.first) : "short", "", said, pixels);
      };
      for (let i = 0; i < spans.begin.length; i += 1) {
        const left = (spans.begin[i] - from) / span;
        const right = (spans.begin[i] + spans.duration[i] - from) / span;
        if (right < 0 || left > 1) continue;
        const top = spans.top[i];
        if ((right - left) * pixels >= THIN) {
          flush(top);
          const label = text("label", i);
          box(Math.max(left, 0), Math.min(right, 1), top, text("colour", i), label, words(i), pixels);
          continue;
        }
        const some = thin.get(top);
        if (some && (left - some.right) * pixels <= THIN) {
          some.right = Math.max(right, some.right);
          some.count += 1;
          some.busy += spans.duration[i];
        } else {
          flush(top);
          thin.set(top, { left, right, count: 1, first: i, busy: spans.duration[i] });
        }
      }
      [...thin.keys()].forEach(flush);
    }

    function drawAxis(pixels) {
      axis.replaceChildren();
      const step = tickStep(span, Math.max(2, Math.floor(pixels / 130)));
      for (let at = Math.ceil(from / step) * step; at <= from + span; at += step) {
        const place = ((at - from) / span) * 100;
        const x = `${place}%`;
        const anchor = place < 4 ? "start" : place > 96 ? "end" : "middle";
        make("line", { x1: x, x2: x, y1: 0, y2: height, class: "grid" }, axis);
        make("text", { x, y: height + 16, class: "tick", "text-anchor": anchor }, axis, tickText(at));
      }
    }

    function draw() {
      waiting = false;
      const pixels = picture.clientWidth || 1;
      drawAxis(pixels);
      drawBoxes(pixels);
      picture.dataset.from = Math.round(from);
      picture.dataset.span = Math.round(span);
    }

    function show(newFrom, newSpan) {
      span = Math.min(spans.whole, Math.max(newSpan, Math.min(DEEPEST, spans.whole)));
      from = Math.min(Math.max(0, newFrom), spans.whole - span);
      if (!waiting) {
        waiting = true;
        requestAnimationFrame(draw);
      }
    }

    function zoom(factor, at = 0.5) {
      const wanted = Math.min(spans.whole, span / factor);
      show(from + at * (span - wanted), wanted);
    }

    const actions = {
      in: () => zoom(STEP),
      out: () => zoom(1 / STEP),
      left: () => show(from - span / 4, span),
      right: () => show(from + span / 4, span),
      whole: () => show(0, spans.whole),
    };
    const keys = {
      "+": "in", "=": "in", "-": "out", ArrowUp: "in", ArrowDown: "out",
      ArrowLeft: "left", ArrowRight: "right", Home: "whole", Escape: "whole",
    };
    for (const button of document.querySelectorAll("[data-time]")) {
      button.addEventListener("click", () => actions[button.dataset.time]());
    }
    picture.addEventListener("keydown", (event) => {
      const what = keys[event.key];
      if (!what || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      actions[what]();
    });
    picture.addEventListener("wheel", (event) => {
      // A page scrolls; only a picture that was chosen takes the wheel.
      if (document.activeElement !== picture && !event.ctrlKey) return;
      event.preventDefault();
      const area = picture.getBoundingClientRect();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        show(from + (event.deltaX / area.width) * span, span);
      } else {
        zoom(STEP ** (-event.deltaY / 100), (event.clientX - area.left) / area.width);
      }
    }, { passive: false });

    let grip = null;
    picture.addEventListener("pointerdown", (event) => {
      grip = { x: event.clientX, from };
      picture.focus({ preventScroll: true });
    });
    picture.addEventListener("pointermove", (event) => {
      const part = event.target.closest?.("[data-words]");
      if (part) about.textContent = part.dataset.words;
      if (!grip || !(event.buttons & 1)) return;
      if (Math.abs(event.clientX - grip.x) > 3) picture.setPointerCapture(event.pointerId);
      show(grip.from - ((event.clientX - grip.x) / picture.clientWidth) * span, span);
    });
    picture.addEventListener("pointerup", () => { grip = null; });
    picture.addEventListener("pointercancel", () => { grip = null; });

    let drawnAt = 0;
    new ResizeObserver(() => {
      if (picture.clientWidth === drawnAt) return;
      drawnAt = picture.clientWidth;
      draw();
    }).observe(picture);
    picture.setAttribute("tabindex", 0);
    picture.setAttribute("role", "application");
    picture.setAttribute("aria-label", "The recorded call over time: + and - zoom, arrow keys move");
    draw();
    picture.dataset.ready = "true";
  }

  if (document.querySelector(".time-line")) unpack("time-spans").then(start);
})();
