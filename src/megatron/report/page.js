"use strict";
// Draws the charts of a page from the JSON in #data. Charts of the same x axis share zoom and cursor.
(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const runs = page.runs || [];
  const hidden = new Set();      // indices of runs
  const views = new Map();       // x axis: [from, to] where zoomed
  const charts = [];
  let smoothing = 0;

  const svg = (name, attributes = {}, parent) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    if (parent) parent.append(node);
    return node;
  };
  const html = (name, attributes = {}, ...children) => {
    const node = document.createElement(name);
    for (const key in attributes) key === "class" ? (node.className = attributes[key]) : node.setAttribute(key, attributes[key]);
    node.append(...children);
    return node;
  };
  const markColor = (kind) => (kind === "save" ? "var(--c2)" : kind === "skip" ? "var(--c4)" : "var(--c6)");
  const markNames = { save: "saved", skip: "update skipped", restart: "started again" };
  const color = (index) => `var(--c${((index % 8) + 8) % 8})`;
  const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

  function show(value) {
    if (value === null || value === undefined || !Number.isFinite(value)) return "NaN";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e9)) return value.toExponential(3).replace(/\.?0+e/, "e");
    if (size >= 1e6) return trim((value / 1e6).toFixed(2)) + " M";
    if (size >= 1e4) return trim((value / 1e3).toFixed(1)) + " k";
    if (Number.isInteger(value)) return String(value);
    return trim(value.toPrecision(size >= 100 ? 4 : 5));
  }
  const trim = (text) => (text.includes(".") ? text.replace(/0+$/, "").replace(/\.$/, "") : text);

  // Round numbers between two values.
  function ticks(low, high, count) {
    const raw = (high - low) / Math.max(1, count), power = Math.pow(10, Math.floor(Math.log10(raw)));
    const step = power * (raw / power > 5 ? 10 : raw / power > 2 ? 5 : raw / power > 1 ? 2 : 1);
    const result = [];
    for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) result.push(Math.abs(at) < step * 1e-9 ? 0 : at);
    return result;
  }
  // Of a logarithmic scale; where less than two of them lie within, as of an even one.
  function powers(low, high) {
    const result = [];
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); ++e)
      for (const m of high / low > 1e3 ? [1] : [1, 2, 5]) {
        const value = m * Math.pow(10, e);
        if (value >= low && value <= high) result.push(value);
      }
    return result.length > 1 ? result : ticks(low, high, 4);
  }

  const tip = html("div", { class: "tip", hidden: "" });
  document.body.append(tip);
  function place(event) {
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = clamp(event.clientX + 16 + box.width > innerWidth ? event.clientX - box.width - 16 : event.clientX + 16, 4, Math.max(4, innerWidth - box.width - 4)) + "px";
    tip.style.top = clamp(event.clientY + 14, 4, Math.max(4, innerHeight - box.height - 4)) + "px";
  }
  function fill(heading, rows) {
    const table = html("table");
    for (const [stroke, name, value] of rows) {
      const dot = html("span", { class: "dot" });
      dot.style.cssText = `display:inline-block;background:${stroke};margin-right:7px`;
      table.append(html("tr", {}, html("td", {}, dot, name), html("td", {}, value)));
    }
    tip.replaceChildren(html("b", {}, heading), table);
  }

  // First index whose x is not below.
  function lower(xs, x) {
    let low = 0, high = xs.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (xs[middle] < x) low = middle + 1; else high = middle;
    }
    return low;
  }

  function smoothed(ys) {
    const result = new Array(ys.length);
    let mean = 0, weight = 0;
    for (let i = 0; i < ys.length; ++i) {
      if (ys[i] === null) { result[i] = null; continue; }
      mean = smoothing * mean + (1 - smoothing) * ys[i];
      weight = smoothing * weight + (1 - smoothing);
      result[i] = mean / weight;
    }
    return result;
  }

  class LineChart {
    constructor(data, card) {
      this.data = data;
      this.log = !!data.log;
      this.svg = svg("svg", { role: "img", "aria-label": data.title });
      const title = html("h3", {}, data.title, html("small", {}, data.unit || ""));
      const button = html("button", { "aria-pressed": String(this.log), title: "logarithmic scale" }, "log");
      button.onclick = () => { this.log = !this.log; button.setAttribute("aria-pressed", String(this.log)); this.draw(); };
      const positive = data.series.every((s) => (s.low || s.y).every((y) => y === null || y > 0));
      if (positive && !data.zero) title.append(button);
      this.log = this.log && positive;
      card.append(title);
      const names = [...new Set(data.series.map((s) => s.name))];
      this.dashes = new Map(names.map((name, i) => [name, runs.length > 1 ? ["", "6 4", "2 3", "8 3 2 3"][i % 4] : ""]));
      this.strokes = (s) => (runs.length > 1 ? color(s.run) : color(names.indexOf(s.name)));
      const kinds = [...new Set((data.marks || []).map((mark) => mark.kind))];
      if (names.length > 1 || kinds.length) {
        const legend = html("div", { class: "legend" });
        for (const kind of kinds) {
          const tick = html("i", { class: "tick" });
          tick.style.background = markColor(kind);
          legend.append(html("span", {}, tick, markNames[kind] || kind));
        }
        for (const name of names.length > 1 ? names : []) {
          const line = html("i");
          line.style.borderTopColor = runs.length > 1 ? "var(--soft)" : color(names.indexOf(name));
          if (this.dashes.get(name)) line.style.borderTopStyle = "dashed";
          legend.append(html("span", {}, line, name));
        }
        card.append(legend);
      }
      card.append(this.svg);
      this.listen();
    }

    visible() { return this.data.series.filter((s) => !hidden.has(s.run)); }

    range() {
      const zoom = views.get(this.data.x);
      if (zoom) return zoom;
      let low = Infinity, high = -Infinity;
      for (const s of this.visible()) if (s.x.length) { low = Math.min(low, s.x[0]); high = Math.max(high, s.x[s.x.length - 1]); }
      if (!(low <= high)) return [0, 1];
      return low === high ? [low - 0.5, high + 0.5] : [low, high];
    }

    draw() {
      const width = this.svg.clientWidth || this.svg.parentNode.clientWidth - 28, height = this.data.wide ? 270 : 216;
      if (width <= 0) return;
      this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      this.svg.style.height = height + "px";
      this.svg.replaceChildren();
      const [x0, x1] = this.range();
      let low = Infinity, high = -Infinity;
      const lines = this.visible().map((s) => {
        const from = Math.max(0, lower(s.x, x0) - 1), to = Math.min(s.x.length, lower(s.x, x1) + 2);
        const soft = smoothing > 0 && this.data.smooth ? smoothed(s.y) : null;
        for (let i = from; i < to; ++i) {
          if (s.y[i] === null || s.x[i] < x0 || s.x[i] > x1) continue;
          low = Math.min(low, soft ? soft[i] : s.low ? s.low[i] : s.y[i]);
          high = Math.max(high, soft ? soft[i] : s.high ? s.high[i] : s.y[i]);
        }
        return { s, from, to, soft };
      });
      if (!(low <= high)) { low = this.log ? 0.1 : 0; high = 1; }
      if (this.data.zero && !this.log) low = Math.min(0, low);
      if (low === high) { const pad = Math.abs(low) * 0.05 || 1; low -= this.data.zero && low === 0 ? 0 : pad; high += pad; }
      const pad = this.log ? 0 : (high - low) * 0.06;
      if (!this.data.zero || low !== 0) low -= pad;
      high += pad;
      if (this.log) { low = Math.max(low * 0.9, 1e-300); high *= 1.1; }
      const marksY = this.log ? powers(low, high) : ticks(low, high, 4);
      const left = 12 + 6.8 * Math.max(2, ...marksY.map((y) => show(y).length)), right = 8, top = 8, bottom = 24;
      const scaleY = this.log ? (y) => (Math.log(y) - Math.log(low)) / (Math.log(high) - Math.log(low)) : (y) => (y - low) / (high - low);
      const X = (x) => left + ((x - x0) / (x1 - x0)) * (width - left - right);
      const Y = (y) => top + (1 - scaleY(y)) * (height - top - bottom);
      this.box = { left, right, top, bottom, width, height, x0, x1, X, Y };
      for (const y of marksY) {
        svg("line", { class: "grid", x1: left, x2: width - right, y1: Y(y), y2: Y(y) }, this.svg);
        svg("text", { x: left - 6, y: Y(y) + 4, "text-anchor": "end" }, this.svg).textContent = show(y);
      }
      for (const x of ticks(x0, x1, width < 420 ? 3 : 6)) {
        svg("line", { class: "axis", x1: X(x), x2: X(x), y1: height - bottom, y2: height - bottom + 4 }, this.svg);
        const anchor = X(x) > width - 30 ? "end" : X(x) < left + 12 ? "start" : "middle";
        svg("text", { x: X(x), y: height - 6, "text-anchor": anchor }, this.svg).textContent = show(x);
      }
      svg("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }, this.svg);
      const id = "clip" + charts.indexOf(this);
      svg("rect", { x: left, y: top, width: Math.max(0, width - left - right), height: height - top - bottom }, svg("clipPath", { id }, this.svg));
      const layer = svg("g", { "clip-path": `url(#${id})` }, this.svg);
      for (const mark of this.data.marks || []) {
        if (hidden.has(mark.run) || mark.x < x0 || mark.x > x1) continue;
        const to = mark.kind === "restart" ? height - bottom : top + 9;
        const line = svg("line", { class: "mark", x1: X(mark.x), x2: X(mark.x), y1: top, y2: to, stroke: markColor(mark.kind) }, layer);
        if (mark.kind === "restart") line.setAttribute("stroke-dasharray", "3 3");
      }
      for (const { s, from, to, soft } of lines) {
        const stroke = this.strokes(s), dash = this.dashes.get(s.name);
        const path = (ys) => {
          let text = "", pen = "M";
          for (let i = from; i < to; ++i) {
            if (ys[i] === null || (this.log && ys[i] <= 0)) { pen = "M"; continue; }
            text += pen + X(s.x[i]).toFixed(1) + " " + Y(ys[i]).toFixed(1);
            pen = "L";
          }
          return text;
        };
        if (soft) svg("path", { class: "raw", d: path(s.y), stroke }, layer);
        if (s.low && !soft) {
          let up = "", down = "";
          for (let i = from; i < to; ++i) {
            if (s.low[i] === null || (this.log && s.low[i] <= 0)) continue;
            const x = X(s.x[i]).toFixed(1);
            up += (up ? "L" : "M") + x + " " + Y(s.high[i]).toFixed(1);
            down = "L" + x + " " + Y(s.low[i]).toFixed(1) + down;
          }
          if (up) svg("path", { class: "band", d: up + down + "Z", fill: stroke }, layer);
        }
        const curve = svg("path", { class: "curve", d: path(soft || s.y), stroke }, layer);
        if (dash) curve.setAttribute("stroke-dasharray", dash);
        if (to - from === 1 && s.y[from] !== null) svg("circle", { cx: X(s.x[from]), cy: Y(s.y[from]), r: 3, fill: stroke }, layer);
      }
      this.cursor = svg("line", { class: "cursor", y1: top, y2: height - bottom, visibility: "hidden" }, this.svg);
      this.brush = svg("rect", { class: "brush", y: top, height: height - top - bottom, visibility: "hidden" }, this.svg);
    }

    at(event) {
      const box = this.svg.getBoundingClientRect(), b = this.box;
      const x = ((event.clientX - box.left) / box.width) * b.width;
      return clamp(b.x0 + ((x - b.left) / (b.width - b.left - b.right)) * (b.x1 - b.x0), b.x0, b.x1);
    }
    point(x) {
      if (!this.cursor) return;
      const inside = x !== null && x >= this.box.x0 && x <= this.box.x1;
      this.cursor.setAttribute("visibility", inside ? "visible" : "hidden");
      if (inside) { this.cursor.setAttribute("x1", this.box.X(x)); this.cursor.setAttribute("x2", this.box.X(x)); }
    }
    listen() {
      let start = null;
      const linked = (act) => charts.forEach((c) => c.data.x === this.data.x && c.point && act(c));
      this.svg.addEventListener("pointermove", (event) => {
        if (!this.box) return;
        const x = this.at(event), rows = [];
        let nearest = null;
        for (const s of this.visible()) {
          let i = lower(s.x, x);
          if (i > 0 && (i === s.x.length || x - s.x[i - 1] < s.x[i] - x)) --i;
          if (i >= s.x.length) continue;
          if (nearest === null || Math.abs(s.x[i] - x) < Math.abs(nearest - x)) nearest = s.x[i];
          rows.push([this.strokes(s), runs.length > 1 ? `${runs[s.run].name} · ${s.name}` : s.name, s.low ? `${show(s.y[i])}  (${show(s.low[i])} … ${show(s.high[i])})` : show(s.y[i])]);
        }
        if (nearest === null) return;
        for (const mark of this.data.marks || [])
          if (!hidden.has(mark.run) && Math.abs(this.box.X(mark.x) - this.box.X(nearest)) < 4 && rows.length < 14) rows.push(["transparent", mark.label, ""]);
        fill(`${this.data.x} ${show(nearest)}`, rows.slice(0, 14));
        place(event);
        linked((c) => c.point(nearest));
        if (start !== null) {
          const a = this.box.X(Math.min(start, x)), b = this.box.X(Math.max(start, x));
          this.brush.setAttribute("x", a);
          this.brush.setAttribute("width", b - a);
          this.brush.setAttribute("visibility", "visible");
        }
      });
      this.svg.addEventListener("pointerleave", () => { tip.hidden = true; linked((c) => c.point(null)); });
      this.svg.addEventListener("pointerdown", (event) => {
        if (event.pointerType === "touch" || !this.box) return;
        start = this.at(event);
        this.svg.setPointerCapture(event.pointerId);
      });
      this.svg.addEventListener("pointerup", (event) => {
        if (start === null) return;
        const end = this.at(event), from = Math.min(start, end), to = Math.max(start, end);
        start = null;
        this.brush.setAttribute("visibility", "hidden");
        if (this.box.X(to) - this.box.X(from) > 6) zoom(this.data.x, [from, to]);
      });
      this.svg.addEventListener("dblclick", () => zoom(this.data.x, null));
    }
  }

  // Rows of values over x as shades: the load of experts, say.
  class HeatChart {
    constructor(data, card) {
      this.data = data;
      this.svg = svg("svg", { role: "img", "aria-label": data.title });
      card.append(html("h3", {}, data.title, html("small", {}, data.unit || "")), this.svg);
    }
    draw() {
      const { x, rows, values } = this.data, width = this.svg.clientWidth || this.svg.parentNode.clientWidth - 28;
      if (width <= 0 || !x.length) return;
      const left = 44, cell = clamp(180 / rows.length, 3, 22), height = rows.length * cell + 26;
      this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      this.svg.style.height = height + "px";
      this.svg.replaceChildren();
      const most = Math.max(...values.map((row) => Math.max(...row))) || 1, step = (width - left - 8) / x.length;
      rows.forEach((name, r) => {
        if (rows.length <= 12 || r % Math.ceil(rows.length / 8) === 0)
          svg("text", { x: left - 6, y: r * cell + cell / 2 + 4, "text-anchor": "end" }, this.svg).textContent = name;
        x.forEach((at, c) => {
          const rect = svg("rect", { x: left + c * step, y: r * cell, width: step + 0.4, height: cell + 0.4, fill: "var(--c0)", "fill-opacity": (values[r][c] / most).toFixed(3) }, this.svg);
          rect.onpointermove = (event) => { fill(`${this.data.xname} ${show(at)}`, [["var(--c0)", name, show(values[r][c])]]); place(event); };
          rect.onpointerleave = () => { tip.hidden = true; };
        });
      });
      svg("text", { x: left, y: height - 6 }, this.svg).textContent = show(x[0]);
      svg("text", { x: width - 8, y: height - 6, "text-anchor": "end" }, this.svg).textContent = show(x[x.length - 1]);
    }
  }

  // Parts of a whole, one bar a label: memory by tag, time by kind.
  class BarChart {
    constructor(data, card) {
      this.data = data;
      this.svg = svg("svg", { role: "img", "aria-label": data.title });
      const legend = html("div", { class: "legend" });
      data.parts.forEach((part, i) => {
        const box = html("i", { class: "box" });
        box.style.background = color(i);
        legend.append(html("span", {}, box, part.name));
      });
      card.append(html("h3", {}, data.title, html("small", {}, data.unit || "")), legend, this.svg);
    }
    draw() {
      const { labels, parts, limit } = this.data, width = this.svg.clientWidth || this.svg.parentNode.clientWidth - 28;
      if (width <= 0) return;
      const bar = 22, height = labels.length * (bar + 8) + 26, left = clamp(10 + 7 * Math.max(...labels.map((l) => l.length)), 40, width * 0.4);
      this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      this.svg.style.height = height + "px";
      this.svg.replaceChildren();
      const sums = labels.map((_, i) => parts.reduce((sum, part) => sum + (part.values[i] || 0), 0));
      const most = Math.max(...sums, limit || 0) * 1.04 || 1, X = (v) => left + (v / most) * (width - left - 10);
      for (const v of ticks(0, most, width < 420 ? 3 : 6)) {
        svg("line", { class: "grid", x1: X(v), x2: X(v), y1: 0, y2: height - 22 }, this.svg);
        svg("text", { x: X(v), y: height - 6, "text-anchor": "middle" }, this.svg).textContent = show(v);
      }
      labels.forEach((label, i) => {
        const y = i * (bar + 8);
        let from = 0;
        const most = Math.max(2, Math.floor((left - 10) / 7));
        svg("text", { x: left - 8, y: y + 15, "text-anchor": "end" }, this.svg).textContent = label.length > most ? label.slice(0, most - 1) + "…" : label;
        parts.forEach((part, p) => {
          const value = part.values[i] || 0;
          const rect = svg("rect", { x: X(from), y, width: Math.max(0, X(from + value) - X(from) - 0.6), height: bar, rx: 2, fill: color(p) }, this.svg);
          rect.onpointermove = (event) => { fill(label, parts.map((other, o) => [color(o), other.name, show(other.values[i] || 0)]).concat([["transparent", "sum", show(sums[i])]])); place(event); };
          rect.onpointerleave = () => { tip.hidden = true; };
          from += value;
        });
      });
      if (limit) svg("line", { x1: X(limit), x2: X(limit), y1: 0, y2: height - 22, stroke: "var(--c4)", "stroke-width": 2 }, this.svg);
    }
  }

  // Spans on lanes over time: a pipeline's schedule, say.
  class LaneChart {
    constructor(data, card) {
      this.data = data;
      this.svg = svg("svg", { role: "img", "aria-label": data.title });
      const legend = html("div", { class: "legend" });
      data.kinds.forEach((kind, i) => {
        const box = html("i", { class: "box" });
        box.style.background = color(i);
        legend.append(html("span", {}, box, kind));
      });
      card.append(html("h3", {}, data.title, html("small", {}, data.unit || "")), legend, this.svg);
    }
    draw() {
      const { lanes, kinds } = this.data, width = this.svg.clientWidth || this.svg.parentNode.clientWidth - 28;
      if (width <= 0) return;
      const row = 24, height = lanes.length * row + 26, left = clamp(10 + 7 * Math.max(...lanes.map((l) => l.name.length)), 30, width * 0.3);
      this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      this.svg.style.height = height + "px";
      this.svg.replaceChildren();
      const end = Math.max(1e-12, ...lanes.flatMap((lane) => lane.spans.map((span) => span[1]))), X = (t) => left + (t / end) * (width - left - 8);
      for (const t of ticks(0, end, width < 420 ? 3 : 8)) {
        svg("line", { class: "grid", x1: X(t), x2: X(t), y1: 0, y2: height - 22 }, this.svg);
        svg("text", { x: X(t), y: height - 6, "text-anchor": "middle" }, this.svg).textContent = show(t);
      }
      lanes.forEach((lane, i) => {
        svg("text", { x: left - 8, y: i * row + 15, "text-anchor": "end" }, this.svg).textContent = lane.name;
        for (const [from, to, kind, name] of lane.spans) {
          const rect = svg("rect", { x: X(from), y: i * row + 1, width: Math.max(0.5, X(to) - X(from) - 0.5), height: row - 4, rx: 2, fill: color(kind) }, this.svg);
          if (X(to) - X(from) > 9 + 6 * name.length) svg("text", { class: "inside", x: (X(from) + X(to)) / 2, y: i * row + 15, "text-anchor": "middle" }, this.svg).textContent = name;
          rect.onpointermove = (event) => { fill(`${lane.name} · ${kinds[kind]} ${name}`, [[color(kind), "from", show(from)], [color(kind), "to", show(to)]]); place(event); };
          rect.onpointerleave = () => { tip.hidden = true; };
        }
      });
    }
  }

  // Points of several groups, and lines: plans by time and memory, a roofline.
  class ScatterChart {
    constructor(data, card) {
      this.data = data;
      this.svg = svg("svg", { role: "img", "aria-label": data.title });
      const legend = html("div", { class: "legend" });
      data.groups.forEach((group, i) => {
        const box = html("i", { class: "box" });
        box.style.background = color(i);
        legend.append(html("span", {}, box, group));
      });
      data.lines.forEach((line) => {
        const stroke = html("i");
        stroke.style.borderTopColor = "var(--soft)";
        legend.append(html("span", {}, stroke, line.name));
      });
      card.append(html("h3", {}, data.title, html("small", {}, data.unit || "")), legend, this.svg);
    }
    draw() {
      const { points, lines, logx, logy, xname, yname, groups } = this.data;
      const width = this.svg.clientWidth || this.svg.parentNode.clientWidth - 28, height = 300;
      if (width <= 0) return;
      this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      this.svg.style.height = height + "px";
      this.svg.replaceChildren();
      const span = (values, log) => {
        let low = Math.min(...values), high = Math.max(...values);
        if (!(low <= high)) return [log ? 1 : 0, log ? 10 : 1];
        if (log) return [low / 1.25, high * 1.25];
        const pad = (high - low || Math.abs(high) || 1) * 0.07;
        return [low >= 0 && low - pad < 0 ? 0 : low - pad, high + pad];
      };
      const [x0, x1] = span(points.map((p) => p[0]).concat(...lines.map((l) => l.x)), logx);
      const [y0, y1] = span(points.map((p) => p[1]).concat(...lines.map((l) => l.y)), logy);
      const marksY = logy ? powers(y0, y1) : ticks(y0, y1, 5), marksX = logx ? powers(x0, x1) : ticks(x0, x1, width < 420 ? 3 : 6);
      const left = 12 + 6.8 * Math.max(2, ...marksY.map((y) => show(y).length)), right = 10, top = 18, bottom = 38;
      const part = (v, a, b, log) => (log ? (Math.log(v) - Math.log(a)) / (Math.log(b) - Math.log(a)) : (v - a) / (b - a));
      const X = (x) => left + part(x, x0, x1, logx) * (width - left - right), Y = (y) => top + (1 - part(y, y0, y1, logy)) * (height - top - bottom);
      for (const y of marksY) {
        svg("line", { class: "grid", x1: left, x2: width - right, y1: Y(y), y2: Y(y) }, this.svg);
        svg("text", { x: left - 6, y: Y(y) + 4, "text-anchor": "end" }, this.svg).textContent = show(y);
      }
      for (const x of marksX) {
        svg("line", { class: "grid", x1: X(x), x2: X(x), y1: top, y2: height - bottom }, this.svg);
        svg("text", { x: X(x), y: height - bottom + 16, "text-anchor": "middle" }, this.svg).textContent = show(x);
      }
      svg("text", { x: width - right, y: height - 6, "text-anchor": "end" }, this.svg).textContent = xname;
      svg("text", { x: left, y: 12 }, this.svg).textContent = yname;
      for (const line of lines) {
        let d = "";
        line.x.forEach((x, i) => { d += (d ? "L" : "M") + X(x).toFixed(1) + " " + Y(line.y[i]).toFixed(1); });
        svg("path", { class: "curve", d, stroke: "var(--soft)" }, this.svg);
      }
      for (let at = points.length - 1; at >= 0; --at) {
        const [x, y, group, name] = points[at];
        const dot = svg("circle", { cx: X(x), cy: Y(y), r: 4.5, fill: color(group), "fill-opacity": 0.8 }, this.svg);
        dot.onpointermove = (event) => { fill(name, [[color(group), groups[group] || "", ""], ["transparent", xname, show(x)], ["transparent", yname, show(y)]]); place(event); };
        dot.onpointerleave = () => { tip.hidden = true; };
      }
    }
  }

  const reset = html("button", { disabled: "", title: "or a double click on a chart" }, "whole run");
  function zoom(axis, range) {
    range ? views.set(axis, range) : views.delete(axis);
    reset.disabled = views.size === 0;
    charts.forEach((chart) => chart.data.x === axis && chart.draw());
  }
  reset.onclick = () => [...views.keys()].forEach((axis) => zoom(axis, null));

  // The theme of the system, unless the reader asks for the other.
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  const theme = html("button", { title: "light or dark" });
  const paint = () => {
    const dark = chosen === null ? system.matches : chosen;
    root.classList.toggle("dark", dark);
    root.classList.toggle("light", !dark);
    theme.textContent = dark ? "light" : "dark";
  };
  theme.onclick = () => { chosen = !root.classList.contains("dark"); paint(); };
  system.addEventListener("change", paint);
  paint();

  const main = document.querySelector("main"), tools = document.querySelector(".tools");
  if (page.sections.some((section) => section.charts.some((chart) => chart.kind === "line"))) tools.append(reset);
  if (page.sections.some((section) => section.charts.some((chart) => chart.smooth))) {
    const slider = html("input", { type: "range", min: "0", max: "0.99", step: "0.01", value: "0", "aria-label": "smoothing" });
    slider.oninput = () => { smoothing = Number(slider.value); charts.forEach((chart) => chart.data.smooth && chart.draw()); };
    tools.append(html("label", {}, "smooth", slider));
  }
  tools.append(theme);
  if (runs.length > 1) {
    const bar = html("div", { class: "runs", role: "group", "aria-label": "runs" });
    runs.forEach((run, i) => {
      const dot = html("span", { class: "dot" });
      dot.style.background = color(i);
      const button = html("button", { "aria-pressed": "true" }, dot, run.name);
      button.onclick = () => {
        hidden.has(i) ? hidden.delete(i) : hidden.add(i);
        button.setAttribute("aria-pressed", String(!hidden.has(i)));
        charts.forEach((chart) => chart.draw());
      };
      bar.append(button);
    });
    document.querySelector("header").after(bar);
  }
  const footer = document.querySelector("footer");
  const kinds = { line: LineChart, heat: HeatChart, bars: BarChart, lanes: LaneChart, scatter: ScatterChart };
  const observer = new ResizeObserver((entries) => entries.forEach((entry) => entry.target.chart.draw()));
  for (const section of page.sections) {
    if (section.title) main.insertBefore(html("h2", {}, section.title), footer);
    const grid = html("div", { class: "charts" });
    main.insertBefore(grid, footer);
    for (const data of section.charts) {
      const card = html("div", { class: "card" + (data.wide ? " wide" : "") });
      grid.append(card);
      const chart = new kinds[data.kind](data, card);
      charts.push(chart);
      card.chart = chart;
      observer.observe(card);
      chart.draw();
    }
  }
})();
