"use strict";
// Draws the bars of #data on a canvas. Places, rows and texts are made before: this only maps
// places to pixels. Texts of a log reach the page as textContent or fillText, never as markup.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { bars, marks, lanes, folds, knots, length } = data;
  const [LANE, ROW, KIND, NAME, STATUS, OPEN, FROM, TO, FACTS, SAID] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
  const ROW_H = 18, GAP = 12, TOP = 44, MIN_W = 2, EDGE = 28;
  const view = document.getElementById("view"), canvas = view.querySelector("canvas");
  const tip = document.getElementById("tip"), picked = document.getElementById("picked");
  const g = canvas.getContext("2d");
  let left = 0, scale = 1, width = 0, height = 0, gutter = 150, picks = -1, hover = -1, waiting = false, ink = {};

  let y = TOP;
  for (const lane of lanes) { lane.y = y; y += Math.max(1, lane.rows.length) * ROW_H + GAP; }
  const total = y;
  view.querySelector("div").style.height = `${total}px`;

  // bars of each row, in order, so that only those in sight are looked at
  const rows = new Map();
  bars.forEach((bar, n) => {
    const key = bar[LANE] * 100000 + bar[ROW];
    if (!rows.has(key)) rows.set(key, []);
    rows.get(key).push(n);
  });
  const order = bars.map((_, n) => n).sort((a, b) => bars[a][FROM] - bars[b][FROM] || bars[a][ROW] - bars[b][ROW]);

  const x = place => gutter + (place - left) * scale;
  const kind = bar => bar[KIND] === "tool" && (bar[STATUS] === "failed" || bar[STATUS] === "denied") ? "failed" : bar[KIND];
  const duration = ms => {  // as units.duration has it; a test holds them equal
    const of = unit => Math.floor(ms / unit + 0.5), two = n => String(n).padStart(2, "0");
    const seconds = of(1000), minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60);
    return of(1) < 1000 ? `${of(1)} ms` : of(100) < 600 ? `${(of(100) / 10).toFixed(1)} s`
      : minutes < 60 ? `${minutes}m ${two(seconds % 60)}s` : hours < 48 ? `${hours}h ${two(minutes % 60)}m`
      : `${Math.floor(hours / 24)}d ${hours % 24}h`;
  };
  const time = place => {  // knots: [place, ms] pairs, linear between them
    let n = 1;
    while (n < knots.length - 1 && knots[n][0] < place) n++;
    const [[p, a], [q, b]] = [knots[n - 1], knots[n]];
    return q > p ? a + (place - p) * (b - a) / (q - p) : a;
  };

  function colours() {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["paper", "ink", "soft", "line", "lane", "interaction", "turn", "model", "compaction", "tool", "failed", "permission", "hook", "fold"])
      ink[name] = style.getPropertyValue(`--${name}`).trim();
  }
  function size() {
    width = view.clientWidth; height = Math.min(view.clientHeight, Math.max(total, 60));
    gutter = width < 600 ? 92 : 150;
    const dots = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * dots); canvas.height = Math.round(height * dots);
    canvas.style.width = `${width}px`; canvas.style.height = `${height}px`;
    g.setTransform(dots, 0, 0, dots, 0, 0);
  }
  const least = () => (width - gutter - EDGE) / Math.max(1, length);
  function clamp() {
    scale = Math.min(Math.max(scale, least()), 40);
    left = Math.min(Math.max(left, 0), Math.max(0, length - (width - gutter - EDGE) / scale));
  }
  function fit() { scale = least(); left = 0; redraw(); }
  function zoom(by, at) {
    const place = left + (at - gutter) / scale;
    scale *= by; scale = Math.min(Math.max(scale, least()), 40);
    left = place - (at - gutter) / scale;
    redraw();
  }
  function redraw() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; draw(); });
  }
  function draw() {
    const begun = performance.now();
    clamp();
    const scroll = view.scrollTop, right = width;
    g.clearRect(0, 0, width, height);
    g.fillStyle = ink.paper; g.fillRect(0, 0, width, height);
    g.font = "12px system-ui, sans-serif"; g.textBaseline = "middle"; g.direction = "ltr";
    lanes.forEach((lane, n) => {
      if (n % 2 === 0) { g.fillStyle = ink.lane; g.fillRect(0, lane.y - scroll - GAP / 2, width, lane.rows.length * ROW_H + GAP); }
    });
    g.save();
    g.beginPath(); g.rect(gutter, 0, right - gutter, height); g.clip();
    for (const [from, wide] of folds) stripes(x(from), 0, wide * scale, height);
    for (const [key, of] of rows) {
      const lane = lanes[Math.floor(key / 100000)], top = lane.y + (key % 100000) * ROW_H - scroll;
      if (top < TOP - ROW_H || top > height) continue;
      let low = 0, high = of.length;
      while (low < high) { const mid = (low + high) >> 1; bars[of[mid]][TO] < left ? low = mid + 1 : high = mid; }
      let covered = -1, was = "";
      for (let n = low; n < of.length; n++) {
        const bar = bars[of[n]], from = x(bar[FROM]);
        if (from > right) break;
        const wide = Math.max(MIN_W, (bar[TO] - bar[FROM]) * scale), what = kind(bar);
        if (from + wide <= covered && what === was && of[n] !== picks) continue;  // under a pixel that is drawn
        covered = from + wide; was = what;
        box(bar, from, top + 2, wide, ROW_H - 4, what, of[n]);
      }
    }
    for (const mark of marks) {
      const at = Math.round(x(mark.at)) + 0.5;
      if (at < gutter - 4 || at > right) continue;
      const bad = mark.bad;
      g.strokeStyle = bad ? ink.failed : ink.soft; g.globalAlpha = 0.45; g.setLineDash([2, 3]);
      g.beginPath(); g.moveTo(at, TOP - 4); g.lineTo(at, height); g.stroke();
      g.setLineDash([]); g.globalAlpha = 1;
    }
    g.fillStyle = ink.paper; g.fillRect(gutter, 0, right, TOP - 8);
    labels(scroll);
    ruler(right);
    g.restore();
    canvas.dataset.drawn = String(performance.now() - begun);
  }
  function box(bar, from, top, wide, high, what, n) {
    if (wide > 4) wide -= 1;  // so that neighbours do not run into each other
    const start = Math.max(from, gutter - 2), end = Math.min(from + wide, width + 2);
    g.fillStyle = ink[what];
    if (bar[OPEN]) {  // no end in the log: fades out
      const fade = g.createLinearGradient(from, 0, from + Math.max(wide, 14), 0);
      fade.addColorStop(0, ink[what]); fade.addColorStop(1, ink.paper);
      g.fillStyle = fade;
      g.fillRect(start, top, Math.max(14, end - start), high);
      g.fillStyle = ink[what]; g.strokeStyle = ink.soft; g.setLineDash([3, 3]);
      g.strokeRect(start + 0.5, top + 0.5, Math.max(14, end - start) - 1, high - 1); g.setLineDash([]);
      const tip = from + Math.max(wide, 14);
      g.beginPath(); g.moveTo(tip, top); g.lineTo(tip + 6, top + high / 2); g.lineTo(tip, top + high); g.fill();
    } else g.fillRect(start, top, end - start, high);
    if (wide > 3 && (what === "failed" || what === "permission")) {  // known without colour
      g.save(); g.beginPath(); g.rect(start, top, end - start, high); g.clip();
      g.strokeStyle = ink.paper; g.globalAlpha = 0.35; g.beginPath();
      const dx = what === "failed" ? 7 : 5;
      for (let at = Math.floor(start / dx) * dx - high; at < end; at += dx) {
        g.moveTo(at, top + high); g.lineTo(at + (what === "failed" ? high : 0), top);
      }
      g.stroke(); g.restore();
    }
    if (n === picks || n === hover) { g.strokeStyle = ink.ink; g.lineWidth = n === picks ? 2 : 1; g.strokeRect(start, top, Math.max(MIN_W, end - start), high); g.lineWidth = 1; }
    const room = end - start - 8;
    if (room < 22) return;
    const light = what === "turn" || what === "interaction" || bar[OPEN];
    g.fillStyle = light ? ink.ink : "#fff";
    if (!light) { g.shadowColor = "#000a"; g.shadowBlur = 2; }
    g.fillText(short(what === "failed" ? `✗ ${bar[NAME]}` : bar[NAME], room), start + 4, top + high / 2 + 0.5);
    g.shadowBlur = 0;
  }
  function short(text, room) {
    if (g.measureText(text).width <= room) return text;
    let cut = Math.min(text.length, Math.floor(room / 4));
    while (cut && g.measureText(`${text.slice(0, cut)}…`).width > room) cut--;
    return cut ? `${text.slice(0, cut)}…` : "";
  }
  function stripes(from, top, wide, high) {
    if (from + wide < gutter || from > width) return;
    g.save();
    g.beginPath(); g.rect(from, top, wide, high); g.clip();
    g.fillStyle = ink.fold; g.fillRect(from, top, wide, high);
    g.strokeStyle = ink.soft; g.globalAlpha = 0.35; g.beginPath();
    for (let at = from - high; at < from + wide; at += 8) { g.moveTo(at, high); g.lineTo(at + high, 0); }
    g.stroke(); g.restore();
  }
  function ruler(right) {
    const wish = 90 / scale, tens = 10 ** Math.floor(Math.log10(Math.max(wish, 1)));
    let step = [1, 2, 5, 10].map(n => n * tens).find(n => n >= wish) || tens * 10;
    for (const round of [6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 216e5, 432e5, 864e5])
      if (step > 3e4 && round >= wish) { step = round; break; }
    g.fillStyle = ink.soft; g.strokeStyle = ink.line;
    for (let n = Math.floor(left / step); n * step <= length; n++) {
      const at = x(n * step);
      if (at > right) break;
      if (folds.some(([from, wide]) => n * step >= from && n * step < from + wide)) continue;
      g.beginPath(); g.moveTo(at + 0.5, 20); g.lineTo(at + 0.5, TOP - 8); g.stroke();
      const text = duration(time(n * step));
      if (!folds.some(([from, wide]) => x(from) < at + g.measureText(text).width + 4 && x(from + wide) > at)) g.fillText(text, at + 3, 26);
    }
    let free = -Infinity;
    for (const [from, wide, said] of folds) {
      stripes(x(from), 0, wide * scale, TOP - 8);
      const text = `≈ ${said}`, room = g.measureText(text).width + 8, at = Math.max(gutter + 1, x(from + wide / 2) - room / 2);
      if (at < free || x(from + wide) < gutter || at + room > right) continue;
      free = at + room;
      g.fillStyle = ink.paper; g.fillRect(at, 18, room, 16); g.fillStyle = ink.ink; g.fillText(text, at + 4, 26);
    }
    g.restore(); g.save();  // the first one stands on the edge
    for (const mark of marks) {
      const at = x(mark.at);
      if (at < gutter - 1) continue;
      g.fillStyle = mark.bad ? ink.failed : ink.ink;
      g.textAlign = "center"; g.fillText(mark.sign, at, 9); g.textAlign = "start";
    }
  }
  function labels(scroll) {
    g.restore(); g.save();
    g.fillStyle = ink.paper; g.fillRect(0, 0, gutter, TOP - 8);
    g.strokeStyle = ink.line; g.beginPath(); g.moveTo(gutter - 0.5, 0); g.lineTo(gutter - 0.5, height);
    g.moveTo(0, TOP - 8.5); g.lineTo(width, TOP - 8.5); g.stroke();
    g.save(); g.beginPath(); g.rect(0, TOP - 8, gutter - 4, height); g.clip();
    const half = gutter < 120 ? 0 : 76;
    for (const lane of lanes) {
      let last = "";
      lane.rows.forEach((band, n) => {
        const top = lane.y + n * ROW_H + ROW_H / 2 - scroll;
        if (band !== last && (half || n)) { g.fillStyle = ink.soft; g.fillText(band, half + 8, top); }
        last = band;
      });
      g.fillStyle = ink.ink; g.font = "600 12px system-ui, sans-serif";
      g.fillText(short(lane.name, (half || gutter) - 8), 8 + Math.min(lane.depth, 3) * (half ? 6 : 0), lane.y + ROW_H / 2 - scroll);
      g.font = "12px system-ui, sans-serif";
    }
    g.restore(); g.save();
    g.beginPath(); g.rect(gutter, 0, width - gutter, TOP - 8); g.clip();
  }

  // --- what is under the pointer, and what is picked ---------------------------------------
  function found(px, py) {
    if (px < gutter || py < TOP - 8) return -1;
    const at = py + view.scrollTop, lane = lanes.findIndex(l => at >= l.y && at < l.y + l.rows.length * ROW_H);
    if (lane < 0) return -1;
    const of = rows.get(lane * 100000 + Math.floor((at - lanes[lane].y) / ROW_H)) || [];
    let best = -1, near = 5;
    for (const n of of) {
      const from = x(bars[n][FROM]), end = Math.max(from + MIN_W, x(bars[n][TO])) + (bars[n][OPEN] ? 20 : 0);
      const away = px < from ? from - px : px > end ? px - end : 0;
      if (away < near) { near = away; best = n; }
    }
    return best;
  }
  function tell(into, bar) {
    into.replaceChildren();
    const head = document.createElement("strong"), list = document.createElement("dl");
    head.textContent = `${bar[NAME]} · ${bar[STATUS]}`; list.className = "facts";
    for (const [label, value] of bar[FACTS]) {
      const dt = document.createElement("dt"), dd = document.createElement("dd");
      dt.textContent = label; dd.textContent = value; list.append(dt, dd);
    }
    into.append(head, list);
  }
  function point(event) {
    const box = view.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
    const mark = py < TOP - 8 && px >= gutter ? marks.find(m => Math.abs(x(m.at) - px) < 7 && py < 18) : null;
    const was = hover;
    hover = mark ? -1 : found(px, py);
    if (hover !== was) redraw();
    tip.hidden = hover < 0 && !mark;
    if (tip.hidden) return;
    if (mark) tip.textContent = mark.said; else tell(tip, bars[hover]);
    const over = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - over.width - 8))}px`;
    tip.style.top = `${event.clientY + 18 + over.height > innerHeight ? Math.max(4, event.clientY - over.height - 12) : event.clientY + 18}px`;
  }
  function pick(n, move) {
    picks = n;
    if (n < 0) { picked.replaceChildren(); redraw(); return; }
    const bar = bars[n];
    tell(picked, bar);
    if (bar[SAID]) { const pre = document.createElement("pre"); pre.textContent = bar[SAID]; picked.append(pre); }
    if (move) {
      const room = (width - gutter) / scale;
      if (bar[FROM] < left || bar[FROM] > left + room * 0.95) left = bar[FROM] - room / 3;
      const top = lanes[bar[LANE]].y + bar[ROW] * ROW_H;
      if (top < view.scrollTop + TOP || top > view.scrollTop + height - ROW_H) view.scrollTop = top - height / 2;
    }
    redraw();
  }
  const fingers = new Map();
  let drag = null;
  view.addEventListener("pointerdown", e => {
    fingers.set(e.pointerId, e.clientX); drag = { at: e.clientX, left, moved: false };
    if (e.pointerType === "mouse") view.setPointerCapture(e.pointerId);
  });
  view.addEventListener("pointermove", e => {
    if (!fingers.has(e.pointerId)) { point(e); return; }
    const [a, b] = [...fingers.values()];
    fingers.set(e.pointerId, e.clientX);
    if (fingers.size === 2) {
      const [c, d] = [...fingers.values()];
      if (Math.abs(a - b) > 8) zoom(Math.abs(c - d) / Math.abs(a - b), (c + d) / 2 - view.getBoundingClientRect().left);
      drag = null;
    } else if (drag && (drag.moved || Math.abs(e.clientX - drag.at) > 3)) {
      drag.moved = true; tip.hidden = true;
      left = drag.left - (e.clientX - drag.at) / scale; redraw();
    }
  });
  const up = e => {
    fingers.delete(e.pointerId);
    if (drag && !drag.moved && e.type === "pointerup") { point(e); pick(hover, false); }
    drag = null;
  };
  view.addEventListener("pointerup", up);
  view.addEventListener("pointercancel", up);
  view.addEventListener("pointerleave", () => { tip.hidden = true; hover = -1; redraw(); });
  view.addEventListener("dblclick", () => {
    if (hover < 0) return;
    const bar = bars[hover], wide = Math.max(4, bar[TO] - bar[FROM]);
    scale = (width - gutter) / (wide * 1.5); left = bar[FROM] - wide / 4; redraw();
  });
  view.addEventListener("wheel", e => {
    const at = e.clientX - view.getBoundingClientRect().left;
    if (e.ctrlKey || e.metaKey || e.altKey) { e.preventDefault(); zoom(Math.exp(-e.deltaY / 300), at); }
    else if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) { e.preventDefault(); left += (e.deltaX || e.deltaY) / scale; redraw(); }
  }, { passive: false });
  view.addEventListener("keydown", e => {
    const middle = gutter + (width - gutter) / 2, page = (width - gutter) / scale / 3, at = order.indexOf(picks);
    const keys = {
      "+": () => zoom(1.6, middle), "=": () => zoom(1.6, middle), "-": () => zoom(1 / 1.6, middle), "0": fit,
      ArrowRight: () => e.shiftKey ? (left += page, redraw()) : pick(order[Math.min(order.length - 1, at + 1)] ?? -1, true),
      ArrowLeft: () => e.shiftKey ? (left -= page, redraw()) : pick(order[Math.max(0, at - 1)] ?? -1, true),
      Home: () => pick(order[0] ?? -1, true), End: () => pick(order[order.length - 1] ?? -1, true), Escape: () => pick(-1, false),
    };
    if (keys[e.key] && !e.ctrlKey && !e.metaKey) { e.preventDefault(); keys[e.key](); }
  });
  view.addEventListener("scroll", redraw);
  document.getElementById("in").addEventListener("click", () => zoom(1.6, gutter + (width - gutter) / 2));
  document.getElementById("out").addEventListener("click", () => zoom(1 / 1.6, gutter + (width - gutter) / 2));
  document.getElementById("fit").addEventListener("click", fit);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { colours(); redraw(); });
  new ResizeObserver(() => { const all = scale <= least() * 1.001; size(); if (all) { scale = least(); left = 0; } draw(); }).observe(view);

  // the same for readers of text: made when it is opened, as it can be long
  const table = document.querySelector("details tbody");
  document.querySelector("details").addEventListener("toggle", () => {
    if (table.rows.length) return;
    for (const n of order) {
      const bar = bars[n], row = table.insertRow();
      const took = (bar[FACTS].find(([label]) => label === "took") || ["", "–"])[1];
      [bar[FACTS][0][1], lanes[bar[LANE]].name, bar[KIND], bar[NAME], took, bar[STATUS]].forEach((text, i) => {
        const cell = row.insertCell(); cell.textContent = text; if (i === 0 || i === 4) cell.className = "n";
      });
    }
  });
  view.style.height = `min(70vh, ${total + 2}px)`;
  colours(); size(); scale = least(); draw();
  window.waterfall = { bars, duration, view: () => ({ left, scale, length, gutter }), x, zoom, fit, pick, draw, first: performance.now() };
})();
