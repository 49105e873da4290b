// Draws the charts when they come into view, and the table of sessions. Whatever a log says is
// only ever set as text.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement, $ = id => document.getElementById(id);

  // --- themes ------------------------------------------------------------------------------
  const theme = $("theme"), system = matchMedia("(prefers-color-scheme: dark)");
  let kept = null;
  try { kept = localStorage.getItem("copilot-insights-theme"); } catch { /* a file may have none */ }
  if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  let printing = false;
  const dark = () => !printing && (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  function named() {
    theme.textContent = dark() ? "Light" : "Dark";
    theme.setAttribute("aria-label", `Change to the ${dark() ? "light" : "dark"} theme`);
  }
  theme.hidden = false;
  theme.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.setItem("copilot-insights-theme", root.dataset.theme); } catch { /* the same */ }
    named(); drawn.forEach(draw);
  });
  system.addEventListener("change", () => { named(); drawn.forEach(draw); });

  // --- charts ------------------------------------------------------------------------------
  const plots = [...document.querySelectorAll(".plot")], drawn = new Set();
  const look = () => dark()
    ? { ink: "#e6edf3", soft: "#9aa4af", line: "#30363d", paper: "#0d1117" }
    : { ink: "#1c2128", soft: "#57606a", line: "#d8dee4", paper: "#ffffff" };
  const swapped = (value, swap) =>
    typeof value === "string" ? swap[value] || value
      : Array.isArray(value) ? value.map(v => swapped(v, swap))
      : value && typeof value === "object"
        ? Object.fromEntries(Object.entries(value).map(([k, v]) => [k, swapped(v, swap)])) : value;
  const heights = Object.fromEntries(plots.map(p => [p.dataset.chart, data.charts[p.dataset.chart].layout.height || 320]));
  for (const p of plots) p.style.minHeight = `${heights[p.dataset.chart] - 56}px`;

  function draw(plot) {
    const { data: traces, layout } = data.charts[plot.dataset.chart], c = look();
    const narrow = plot.clientWidth < 480;
    const colors = dark() ? data.dark : {};
    const all = swapped(layout, { ...colors, "#1c2128": c.ink, "#57606a": c.soft, "#d8dee4": c.line, white: "rgba(0,0,0,0)" });
    all.margin = { l: 4, r: 12, t: 8, b: 8 };
    all.height = heights[plot.dataset.chart] - 56; all.showlegend = false;
    all.hoverlabel = { bgcolor: c.paper, bordercolor: c.line, font: { color: c.ink } };
    if (narrow && all.xaxis && all.xaxis.dtick) { delete all.xaxis.dtick; delete all.xaxis.tickmode; all.xaxis.nticks = 5; }
    if (narrow) tighten(all, traces);
    if (printing) all.width = 660;
    const shown = swapped(traces, colors);
    legend(plot, shown, layout);
    Plotly.react(plot, shown, all, { displayModeBar: false, responsive: true });
    drawn.add(plot);
  }
  // on a narrow page names are cut, and every other tick of a log axis is left out
  function tighten({ xaxis, yaxis }, traces) {
    if (yaxis && yaxis.type === "category") {
      const names = [...new Set(traces.flatMap(t => t.y))];
      yaxis.tickvals = names; yaxis.ticktext = names.map(n => { const t = plain(n); return t.length > 22 ? fancy(t.slice(0, 21)) + "…" : n; });
    }
    if (xaxis && xaxis.tickvals && xaxis.tickvals.length > 4) {
      const some = (_, i) => i % 2 === 0;
      xaxis.tickvals = xaxis.tickvals.filter(some); xaxis.ticktext = xaxis.ticktext.filter(some);
    }
  }
  // of text beside the picture, so that it wraps as text does
  function legend(plot, traces, layout) {
    let list = plot.previousElementSibling;
    if (traces.length < 2 || layout.showlegend === false) return;
    if (!list.classList.contains("legend")) {
      list = document.createElement("div"); list.className = "legend"; list.setAttribute("aria-hidden", "true"); plot.before(list);
    }
    list.replaceChildren(...traces.map(t => {
      const item = document.createElement("span"), sign = document.createElement("i");
      const mode = t.mode || "";
      sign.className = mode.startsWith("lines") ? "line" : mode ? "dot" : "";
      sign.style.background = t.fillcolor || (mode.startsWith("lines") ? t.line.color : t.marker.color);
      item.append(sign, plain(t.name)); return item;
    }));
  }
  // names are escaped for plotly, which takes some HTML
  const ENTITY = { "&lt;": "<", "&gt;": ">", "&amp;": "&", "&#36;": "$" };
  const fancy = text => text.replace(/[<>&$]/g, c => Object.keys(ENTITY).find(e => ENTITY[e] === c));
  const plain = name => name.replace(/&(lt|gt|amp|#36);/g, e => ENTITY[e]);
  // one chart a frame, so that the first is seen before the second is made
  const queue = [];
  function next() {
    const plot = queue.shift();
    if (!plot) return;
    if (!drawn.has(plot)) draw(plot);
    requestAnimationFrame(() => { window.report.first ??= performance.now(); next(); });
  }
  const seen = new IntersectionObserver(entries => {
    const idle = !queue.length;
    for (const { isIntersecting, target } of entries) {
      if (isIntersecting) { seen.unobserve(target); queue.push(target); }
    }
    if (idle) next();
  }, { rootMargin: "300px" });
  addEventListener("beforeprint", () => {
    printing = true;
    plots.forEach(draw);
  });
  addEventListener("afterprint", () => { printing = false; drawn.forEach(draw); });

  // --- the table of sessions -----------------------------------------------------------------
  const { columns, rows, flags, left } = data.sessions, STEP = 50;
  const [ID, LINK, CELLS, ON] = [0, 1, 2, 3];
  const head = $("list").tHead.rows[0], body = $("list").tBodies[0], find = $("find"), more = $("more");
  const text = cell => Array.isArray(cell) ? cell[0] : cell, key = cell => Array.isArray(cell) ? cell[1] : cell;
  const hay = rows.map(r => `${r[ID]} ${r[CELLS].map(text).join(" ")}`.toLowerCase());
  const pressed = new Set();
  let by = -1, down = true, most = STEP, order = [];
  const none = v => v === "" || v === "–";
  function compare(a, b) {
    const x = key(rows[a][CELLS][by]), y = key(rows[b][CELLS][by]);
    if (none(x) || none(y)) return none(x) - none(y) || a - b;  // what is not known stands last
    const sign = typeof x === "number" ? x - y : x < y ? -1 : x > y ? 1 : 0;
    return (down ? -sign : sign) || a - b;
  }
  function choose() {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    order = rows.map((_, i) => i).filter(i =>
      [...pressed].every(f => rows[i][ON].includes(f)) && words.every(w => hay[i].includes(w)));
    if (by >= 0) order.sort(compare);
    show();
  }
  function show() {
    const made = document.createDocumentFragment();
    for (const i of order.slice(0, most)) {
      const tr = document.createElement("tr");
      rows[i][CELLS].forEach((cell, n) => {
        const td = document.createElement("td");
        if (columns[n][1]) td.className = "n";
        if (columns[n][2] === "why") {
          for (const f of rows[i][ON]) { const tag = document.createElement("span"); tag.className = "tag"; tag.textContent = flags[f]; td.append(tag); }
        } else if (columns[n][2] === "id" && rows[i][LINK]) {
          const a = document.createElement("a"); a.href = rows[i][LINK]; a.textContent = text(cell); a.title = "Waterfall of this session"; td.append(a);
        } else td.textContent = text(cell);
        if (columns[n][2] === "id") td.title = rows[i][ID];
        else if (!columns[n][1] && text(cell).length > 18) td.title = text(cell);
        tr.append(td);
      });
      made.append(tr);
    }
    body.replaceChildren(made);
    const said = n => n.toLocaleString("en");
    $("count").textContent = `${said(Math.min(most, order.length))} of ${said(order.length)} sessions shown`
      + (order.length < rows.length ? `, ${said(rows.length)} in all` : "")
      + (left ? `; ${said(left)} more are not in this page` : "");
    more.hidden = order.length <= most;
    more.textContent = `Show all ${said(order.length)}`;
  }
  columns.forEach(([title, number], n) => {
    const th = document.createElement("th"), button = document.createElement("button");
    th.scope = "col"; if (number) th.className = "n";
    button.type = "button"; button.textContent = title; th.append(button); head.append(th);
    button.addEventListener("click", () => {
      down = by === n ? !down : Boolean(number) || columns[n][2] === "started_at"; by = n;
      [...head.cells].forEach((c, i) => i === n ? c.setAttribute("aria-sort", down ? "descending" : "ascending") : c.removeAttribute("aria-sort"));
      choose();
    });
  });
  document.querySelectorAll(".flag").forEach((button, n) => {
    const of = rows.filter(r => r[ON].includes(n)).length;
    button.textContent = `${flags[n]} ${of.toLocaleString("en")}`; button.disabled = !of;
    button.addEventListener("click", () => {
      pressed.has(n) ? pressed.delete(n) : pressed.add(n);
      button.setAttribute("aria-pressed", String(pressed.has(n))); most = STEP; choose();
    });
  });
  find.addEventListener("input", () => { most = STEP; choose(); });
  more.addEventListener("click", () => { most = Infinity; show(); });

  window.report = { first: null, draw: () => plots.forEach(p => drawn.has(p) || draw(p)), drawn: () => drawn.size };
  named(); choose();
  if (window.Plotly) plots.forEach(p => seen.observe(p));
  else plots.forEach(p => { p.textContent = "The picture needs plotly, which could not be fetched; its numbers are in the tables."; });
})();
