// The page of exanetctl ui: it draws the events of the server (docs/exanetctl.md).
'use strict';

const stageNames = ['drain', 'queue', 'page_in', 'answer'];
const rowsShown = 24;
// Buckets of the histograms, as in the server. A bar has bucketsDrawn of them.
const bucketFrom = 64, bucketsAnOctave = 8, bucketsDrawn = 4; // ns
const keptFaults = 200;

const state = {
  view: null, batch: null, zero: {}, // histograms at the last reset
  faults: [], // newest first
  chosen: null, // the fault that the user selected
  one: null, // the fault in the pipeline
  began: 0, paused: false, dirty: true, skipped: 0,
  trouble: {}, silent: '', // the program that does not answer, or ''
};

const $ = (id) => document.getElementById(id);

// make returns an element with attributes and with children or text.
function make(name, attributes = {}, ...children) {
  const svg = ['svg', 'g', 'rect', 'line', 'path', 'circle', 'text'].includes(name);
  const e = svg ? document.createElementNS('http://www.w3.org/2000/svg', name) : document.createElement(name);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  e.append(...children);
  return e;
}

const us = (ns) => (ns < 0 ? '-' : (ns / 1e3).toFixed(1));
const time = (ns) => (ns < 1e7 ? `${us(ns)} µs` : `${(ns / 1e6).toFixed(1)} ms`);
const plural = (n, word) => `${n} ${word}${n === 1 ? '' : 's'}`;
const hex = (n, digits) => '0x' + n.toString(16).padStart(digits, '0');

// rate formats a number per second with up to three digits.
function rate(n) {
  if (n === null) return '-';
  for (const unit of ['', 'k', 'M', 'G']) {
    if (n < 999.5 || unit === 'G') return n.toFixed(n < 9.95 && n !== Math.trunc(n) ? 1 : 0) + unit;
    n /= 1000;
  }
}
const megabytes = (bytes) => (bytes === null ? '-' : (bytes / 1e6).toFixed(1));

function size(n) {
  for (const [unit, of] of [['GiB', 2 ** 30], ['MiB', 2 ** 20], ['KiB', 2 ** 10]]) if (n >= of && n % of === 0) return `${n / of} ${unit}`;
  return `${n} B`;
}

function age(ns) {
  if (ns < 0) return '-';
  return ns < 1e6 ? `${(ns / 1e3).toFixed(0)} µs` : ns < 1e9 ? `${(ns / 1e6).toFixed(1)} ms` : `${(ns / 1e9).toFixed(1)} s`;
}

// spans returns the stages that a fault has reached: name, begin and end in ns after its
// interrupt.
function spans(f) {
  const at = [0, f.drained_ns, f.page_in_ns, f.resident_ns, f.rapf_sent_ns];
  const list = [];
  stageNames.forEach((name, i) => {
    if (at[i] >= 0 && at[i + 1] >= at[i]) list.push({ name, from: at[i], to: at[i + 1] });
  });
  return list;
}
const total = (f) => Math.max(f.drained_ns, f.page_in_ns, f.resident_ns, f.rapf_sent_ns, 1);
const key = (f) => `${f.node}.${f.time_ns}.${f.page}.${f.transaction}.${f.sequence}`;

// nodeOf returns the index of a node by its coordinates, or -1 for a node of another pfd.
const nodeOf = (id) => (state.view ? state.view.nodes.findIndex((n) => n.node_id === id) : -1);
const nodeName = (id) => (nodeOf(id) < 0 ? `node ${hex(id, 6)}` : `node ${state.view.nodes[nodeOf(id)].node}`);

// room sets the size of an svg and returns its width in pixels, so that text in it has the
// size of the page's text.
function room(svg, height) {
  const width = Math.max(Math.floor(svg.getBoundingClientRect().width), 300);
  svg.setAttribute('viewBox', `0 0 ${width} ${height(width)}`);
  return width;
}

function drawHead() {
  const v = state.view;
  document.body.classList.toggle('silent', Boolean(state.silent));
  if (state.silent) $('status').textContent = `${state.silent} does not answer${v ? '; the page shows its last state' : ''}`;
  if (!v) return;
  const s = v.status;
  if (!state.silent) $('status').textContent = `${s.daemon_version}, ${s.state}, up ${Math.round(s.uptime_ns / 1e9)} s, ${s.device}, ${s.socket}`;
  const t = v.total;
  const cells = [['transfers/s', rate(t.transfers_per_s)], ['failed/s', rate(t.failed_per_s), t.failed_per_s > 0], ['MB/s', megabytes(t.bytes_per_s)],
    ['faults/s', rate(t.faults_per_s)], ['retransmits/s', rate(t.retransmits_per_s)], ['pinned bytes', s.pinned_bytes, s.pinned_bytes > 0]];
  $('totals').replaceChildren(...cells.map(([name, value, bad]) => make('div', {}, make('dt', {}, name), make('dd', bad ? { class: 'bad' } : {}, state.silent ? '-' : String(value)))));
}

// Boxes of nodes: width, height, and the gap below one. More than mostBoxes nodes have small ones.
const box = { w: 136, h: 62, gap: 34 }, small = { w: 62, h: 36, gap: 26 };
const mostBoxes = 12;

// drawNodes draws the nodes in rows, and a wire for each pair with transfers in flight.
function drawNodes() {
  const v = state.view, svg = $('nodes');
  if (!v) return;
  const wires = new Map();
  const ids = v.nodes.map((n) => n.node_id);
  for (const c of v.channels) {
    const from = v.nodes.findIndex((n) => n.node === c.node);
    if (from < 0) continue;
    if (!ids.includes(c.dst_node_id)) ids.push(c.dst_node_id);
    const to = ids.indexOf(c.dst_node_id), k = `${from} ${to}`;
    const w = wires.get(k) || { from, to, channels: 0, flight: 0, paused: 0 };
    w.channels++; w.flight += c.blocks_in_flight; w.paused += c.blocks_paused;
    wires.set(k, w);
  }
  const many = ids.length > mostBoxes, { w: bw, h: bh, gap } = many ? small : box, two = ids.length <= 2;
  let columns = 1;
  const top = two ? 46 : 22;
  const W = room(svg, (width) => {
    columns = Math.min(ids.length, ids.length === 4 ? 2 : Math.max(Math.floor((width + 8) / (bw + 8)), 1));
    return 2 * top + (bh + gap) * Math.ceil(ids.length / columns) - gap;
  });
  const at = ids.map((_, i) => [columns === 1 ? W / 2 : bw / 2 + 2 + (i % columns) * (W - bw - 4) / (columns - 1), top + bh / 2 + (bh + gap) * Math.floor(i / columns)]);
  const parts = [], labels = [];
  if (two && ids.length === 2) parts.push(make('line', { class: 'wire', x1: at[0][0], y1: at[0][1], x2: at[1][0], y2: at[1][1] }));
  const said = [];
  for (const w of wires.values()) {
    const [x1, y1] = at[w.from], [x2, y2] = at[w.to];
    const bend = w.from < w.to ? -1 : 1, mx = (x1 + x2) / 2, my = (y1 + y2) / 2 + bend * 36;
    const d = w.from === w.to ? `M${x1 - 20} ${y1 - bh / 2}c-20 -26 60 -26 40 0` : `M${x1} ${y1}Q${mx} ${my} ${x2} ${y2}`;
    const wire = make('path', { class: 'wire busy', d });
    wire.style.strokeWidth = Math.min(1 + w.channels, 7);
    parts.push(wire);
    if (two && w.from !== w.to) {
      [`${plural(w.channels, 'channel')} ${bend < 0 ? '→' : '←'}`, `${w.flight} in flight`, `${w.paused} paused`].forEach((t, i) => {
        labels.push(make('text', { class: i ? 'edge soft' : 'edge', x: mx, y: my + (bend < 0 ? -20 : 4) + 12 * i, 'text-anchor': 'middle' }, t));
      });
    }
    said.push(`${nodeName(ids[w.from])} to ${nodeName(ids[w.to])}: ${plural(w.channels, 'channel')}, ${w.flight} blocks in flight, ${w.paused} paused`);
  }
  ids.forEach((id, i) => {
    const n = v.nodes[i], [x, y] = at[i];
    const fifo = n && v.fifos.find((f) => f.node === n.node && f.name === 'rxfifo');
    const lines = n ? [[plural(n.domains, 'domain')], [`${rate(n.rates.faults_per_s)} faults/s`]] : [['of another'], ['pfd']];
    if (fifo) lines.push(fifo.overflow ? ['FIFO overflow', 'bad'] : [`FIFO ${fifo.level}${fifo.highest_level < 0 ? '' : `, max ${fifo.highest_level}`}`]);
    const hot = state.one && n && state.one.node === n.node;
    const group = make('g', { class: 'node' });
    group.append(make('rect', { class: hot ? 'box hot' : 'box', x: x - bw / 2, y: y - bh / 2, width: bw, height: bh, rx: 5 }));
    const left = x - bw / 2 + (many ? 4 : 8);
    group.append(make('text', { x: left, y: y - bh / 2 + 15, 'font-weight': 'bold' }, n ? `node ${n.node}` : hex(id, 6)));
    if (many) group.append(make('text', { class: 'soft', x: left, y: y - bh / 2 + 29 }, n ? `${rate(n.rates.faults_per_s)}/s` : ''));
    else lines.forEach(([t, kind], k) => group.append(make('text', { class: kind || 'soft', x: left, y: y - bh / 2 + 29 + 13 * k }, t)));
    parts.push(group);
    said.push(`${nodeName(id)}: ${lines.map(([t]) => t).join(', ')}`);
  });
  $('nodes-note').textContent = many ? 'faults per second' : '';
  svg.replaceChildren(...parts, ...labels);
  $('nodes-text').textContent = said.join('; ');
}

// The pipeline: a node sends a block to an absent page; the block waits for pfd's stages, which
// are drawn to scale, and is retransmitted.
const lane = { y: 42, sent: 30, absent: 156, from: 210, to: 560, again: 690 };
const legTime = 350, scaledTime = 2200, restTime = 500; // ms

function drawOne() {
  const f = state.one, svg = $('one');
  if (!f) return;
  const wide = (width) => width >= 690; // the names of the stages fit between those of the nodes
  const W = room(svg, (width) => (wide(width) ? 92 : 166));
  Object.assign(lane, wide(W) ? { absent: 156, from: 210, to: W - 160, again: W - 30 } : { absent: 150, from: 170, to: W - 62, again: W - 30 });
  const list = spans(f), all = total(f), scale = (ns) => lane.from + (lane.to - lane.from) * ns / all;
  const short = (name) => name.replace('node 0x', '0x');
  const source = short(nodeName(f.source_node_id)), here = state.view ? `node ${f.node}` : '';
  const parts = [
    make('line', { class: 'wire', x1: lane.sent, y1: lane.y, x2: lane.absent, y2: lane.y }),
    make('line', { class: 'wire', x1: lane.absent, y1: lane.y, x2: lane.from, y2: lane.y }),
    make('line', { class: 'wire', x1: lane.to, y1: lane.y, x2: lane.again, y2: lane.y, 'stroke-dasharray': f.outcome === 'resolved' ? '' : '3 5' }),
  ];
  for (const s of list) parts.push(make('rect', { class: 'fill-' + s.name, x: scale(s.from), y: lane.y - 9, width: Math.max(scale(s.to) - scale(s.from), 1), height: 18 }));
  const caption = (x, anchor, first, second) => {
    parts.push(make('text', { x, y: lane.y + 28, 'text-anchor': anchor }, first));
    parts.push(make('text', { class: 'soft', x, y: lane.y + 42, 'text-anchor': anchor }, second));
  };
  for (const x of [lane.sent, lane.absent, lane.again]) parts.push(make('circle', { class: 'box', cx: x, cy: lane.y, r: 7 }));
  caption(2, 'start', f.write ? `${source} sends` : `${here} reads`, f.write ? 'a block' : 'the source');
  caption(lane.absent, 'middle', `${here}: no page`, 'FIFO entry, NACK');
  caption(W - 2, 'end', f.outcome === 'resolved' ? `${f.write ? source : here} sends` : f.outcome, f.outcome === 'resolved' ? 'it again' : '');
  stageNames.forEach((name, i) => {
    const s = list.find((o) => o.name === name);
    const [x, y] = wide(W) ? [228 + (W - 336) / 4 * i, lane.y + 28] : [2 + W / 2 * (i % 2), lane.y + 72 + 32 * Math.floor(i / 2)];
    parts.push(make('rect', { class: 'fill-' + name, x, y: y - 8, width: 9, height: 9, rx: 2 }));
    parts.push(make('text', { x: x + 13, y }, name));
    parts.push(make('text', { class: 'soft', x: x + 13, y: y + 14 }, s ? time(s.to - s.from) : list.some((o) => stageNames.indexOf(o.name) > i) ? 'none' : 'not reached'));
  });
  parts.push(make('circle', { id: 'dot', class: 'dot', cx: lane.sent, cy: lane.y, r: 7 }));
  svg.replaceChildren(...parts);
  $('one-mode').textContent = state.chosen ? 'selected; esc follows the newest' : 'the newest';
  $('one-text').textContent = `Domain ${f.node}/${f.slot}, page ${f.page}, ${f.write ? 'destination' : 'source'}, method ${f.method}, policy ${f.policy}` +
    `${f.kind ? ', ' + f.kind + ' fault' : ''}: ${f.outcome} after ${time(all)}${f.reason ? ': ' + f.reason : ''}. ` +
    `pfd’s stages are to scale, ${Math.round(scaledTime * 1e6 / all).toLocaleString('en')} times slower; the paths between nodes are not to scale.`;
}

// move moves the dot to the current place of the fault, and starts the next fault at the end.
function move(now) {
  requestAnimationFrame(move);
  if (state.dirty && now - (state.drawn || 0) > 150) draw(now);
  const f = state.one;
  if (state.paused || !f) return;
  const t = now - state.began, dot = $('dot');
  let x;
  if (t < legTime) x = lane.sent + (lane.absent - lane.sent) * t / legTime;
  else if (t < 2 * legTime) x = lane.absent + (lane.from - lane.absent) * (t - legTime) / legTime;
  else if (t < 2 * legTime + scaledTime) x = lane.from + (lane.to - lane.from) * (t - 2 * legTime) / scaledTime;
  else if (t < 3 * legTime + scaledTime) x = f.outcome === 'resolved' ? lane.to + (lane.again - lane.to) * (t - 2 * legTime - scaledTime) / legTime : lane.to;
  else x = f.outcome === 'resolved' ? lane.again : lane.to;
  if (dot) dot.setAttribute('cx', x);
  if (t > 3 * legTime + scaledTime + restTime) next(now);
}

function next(now) {
  const f = state.chosen || state.faults[0];
  if (!f) return;
  state.one = f;
  state.began = now;
  drawOne();
}

// drawFaults draws the waterfalls to one scale, whose end is the 90th percentile of the times.
function drawFaults() {
  const list = state.faults.slice(0, rowsShown);
  if (state.chosen && !list.some((f) => key(f) === key(state.chosen))) list[list.length - 1] = state.chosen;
  const times = list.map(total).sort((a, b) => a - b);
  const most = times.length ? times[Math.floor((times.length - 1) * 0.9)] : 1;
  $('scale').textContent = times.length ? `to ${us(most)} µs` : '';
  const chosen = state.chosen && key(state.chosen);
  const box = $('faults');
  box.replaceChildren(...list.map((f, i) => {
    const bar = make('span', { class: 'bar' });
    let end = 0;
    for (const s of spans(f)) {
      const b = make('b', { class: 'fill-' + s.name });
      b.style.marginLeft = `${100 * (s.from - end) / most}%`; // for missing stages
      b.style.width = `${100 * (s.to - s.from) / most}%`;
      end = s.to;
      bar.append(b);
    }
    const row = make('div', { class: 'row', role: 'option', id: `fault-${i}`, 'aria-selected': String(key(f) === chosen),
      'aria-label': `domain ${f.node}/${f.slot}, page ${f.page}, ${f.outcome}, ${us(total(f))} microseconds` },
    make('span', {}, `${f.node}/${f.slot}`), make('span', {}, f.page), make('span', {}, f.write ? 'destination' : 'source'), make('span', {}, f.kind || '-'),
    make('span', f.outcome === 'resolved' ? {} : { class: 'bad', title: f.reason || '' }, f.outcome), make('span', { class: 'n' }, us(total(f))), bar);
    row.addEventListener('click', () => choose(f));
    return row;
  }));
  const at = list.findIndex((f) => key(f) === chosen);
  if (at >= 0) box.setAttribute('aria-activedescendant', `fault-${at}`);
  else box.removeAttribute('aria-activedescendant');
  const b = state.batch;
  if (b) $('faults-note').textContent = `newest first; ${b.seen.toLocaleString('en')} read${b.lost ? `, ${b.lost.toLocaleString('en')} omitted: too fast` : ''}${state.skipped ? `, ${plural(state.skipped, 'batch')} missed` : ''}`;
}

function choose(f) {
  state.chosen = f;
  state.dirty = true;
  next(performance.now());
  drawFaults();
}

const axis = [[1e3, '1 µs'], [1e4, '10 µs'], [1e5, '100 µs'], [1e6, '1 ms'], [1e7, '10 ms'], [1e8, '100 ms']];

// quantile returns the quantile q of a histogram, to one bucket.
function quantile(h, q) {
  let left = q * h.reduce((a, c) => a + c, 0);
  for (const [k, c] of h.entries()) {
    if (c > 0 && left <= c) return bucketFrom * 2 ** ((k - 1 + left / c) / bucketsAnOctave);
    left -= c;
  }
  return 0;
}

function drawHistograms() {
  const b = state.batch, svg = $('histograms');
  if (!b) return;
  const names = [...stageNames, 'total'], left = 62, right = 96, rowH = 91, H = rowH * names.length + 22;
  const W = room(svg, () => H);
  const n = 48, w = (W - left - right) / n;
  const x = (ns) => left + w * Math.min(Math.max(bucketsAnOctave * Math.log2(ns / bucketFrom) + 1, 0) / bucketsDrawn, n);
  const parts = [], said = [];
  let last = -Infinity;
  for (const [ns, label] of axis) {
    parts.push(make('line', { class: 'axis', x1: x(ns), x2: x(ns), y1: 0, y2: H - 20 }));
    if (x(ns) - last < 46) continue; // no room for the label
    last = x(ns);
    parts.push(make('text', { class: 'soft edge', x: x(ns), y: H - 6, 'text-anchor': 'middle' }, label));
  }
  let counted = 0;
  names.forEach((name, i) => {
    const zero = state.zero[name] || [], h = (b.histograms[name] || []).map((c, k) => c - (zero[k] || 0));
    const bars = Array(n).fill(0), bottom = rowH * (i + 1) - 4;
    h.forEach((c, k) => { bars[Math.floor(k / bucketsDrawn)] += c; });
    const most = Math.max(...bars, 1);
    bars.forEach((c, k) => {
      if (c > 0) parts.push(make('rect', { class: 'fill-' + name, x: left + w * k, y: bottom - Math.max((rowH - 14) * c / most, 1), width: Math.max(w - 1, 1), height: Math.max((rowH - 14) * c / most, 1) }));
    });
    parts.push(make('line', { class: 'axis', x1: left, x2: W - right, y1: bottom, y2: bottom }));
    parts.push(make('text', { x: 0, y: bottom - 2 }, name));
    const all = h.reduce((a, c) => a + c, 0);
    if (all) {
      const p50 = quantile(h, 0.5), p99 = quantile(h, 0.99);
      parts.push(make('line', { class: 'p50', x1: x(p50), x2: x(p50), y1: bottom - rowH + 14, y2: bottom }));
      parts.push(make('text', { x: W - 2, y: bottom - 16, 'text-anchor': 'end' }, `p50 ${time(p50)}`));
      parts.push(make('text', { class: 'soft', x: W - 2, y: bottom - 2, 'text-anchor': 'end' }, `p99 ${time(p99)}`));
      said.push(`${name}: median ${us(p50)}, 99th percentile ${us(p99)} microseconds`);
    }
    if (name === 'total') counted = all;
  });
  svg.replaceChildren(...parts);
  $('stages-text').textContent = said.join('; ');
  $('stages-note').textContent = `${counted.toLocaleString('en')} resolved; p50 (dashed) and p99 of all of them, to 9 %`;
}

const cells = (list) => list.map(([text, numeric]) => make('td', numeric ? { class: 'n' } : {}, text));

function drawTables() {
  const v = state.view;
  if (!v) return;
  $('channels-note').textContent = v.channels.length ? `${v.channels.length}: acknowledged (green), in flight (blue), paused by a fault (orange)` : 'none at this moment';
  $('channels').replaceChildren(...v.channels.slice(0, 32).map((c) => {
    const bar = make('div', { class: 'bar', role: 'img', 'aria-label': `${c.blocks_acked} of ${c.blocks} blocks acknowledged` });
    for (const [name, n] of [['acked', c.blocks_acked], ['flight', c.blocks_in_flight - c.blocks_paused], ['held', c.blocks_paused]]) {
      const b = make('b', { class: name });
      b.style.width = `${100 * n / Math.max(c.blocks, 1)}%`;
      if (n > 0) bar.append(b);
    }
    return make('tr', {}, ...cells([[`${c.node}/${c.slot}/${c.channel}`], [nodeName(c.dst_node_id)], [c.class || '-'], [size(c.size_bytes), 1],
      [String(c.blocks_in_flight), 1], [String(c.blocks_paused), 1], [String(c.blocks_retransmitted), 1], [age(c.age_ns), 1]]), make('td', {}, bar));
  }));
  $('domains').replaceChildren(...v.domains.slice(0, 32).map((d) => make('tr', {}, ...cells([[`${d.node}/${d.slot}`], [String(d.pid), 1], [d.group], [d.method],
    [rate(d.rates.transfers_per_s), 1], [megabytes(d.rates.bytes_per_s), 1], [rate(d.rates.faults_per_s), 1], [String(d.blocks_paused), 1]]))));
}

function draw(now) {
  state.dirty = false;
  state.drawn = now;
  drawHead(); drawNodes(); drawFaults(); drawHistograms(); drawTables();
  if (!state.one && state.faults.length) next(now);
}

// trouble shows an error of the views or of the faults; '' clears it.
function trouble(what, text) {
  state.trouble[what] = text;
  const all = [...new Set(Object.values(state.trouble))].filter(Boolean).join(' ');
  $('trouble').hidden = !all;
  $('trouble').textContent = all;
}

// silent records the program that does not answer; '' means that all answer.
function silent(who) {
  if (state.silent === who) return;
  state.silent = who;
  drawHead();
}

function listen() {
  const events = new EventSource('events');
  events.addEventListener('view', (e) => {
    trouble('views', '');
    silent('');
    if (state.paused) return;
    state.view = JSON.parse(e.data);
    state.dirty = true;
  });
  events.addEventListener('faults', (e) => {
    if (state.paused) return;
    const b = JSON.parse(e.data);
    if (state.batch && b.number > state.batch.number + 1 && !state.resumed) state.skipped += b.number - state.batch.number - 1;
    state.resumed = false;
    state.batch = b;
    state.faults = [...b.faults.reverse(), ...state.faults].slice(0, keptFaults);
    state.dirty = true;
  });
  events.addEventListener('trouble', (e) => { trouble('views', JSON.parse(e.data)); silent('pfd'); });
  events.addEventListener('unfollowed', (e) => trouble('faults', JSON.parse(e.data)));
  events.addEventListener('open', () => { state.batch = null; state.faults = []; state.trouble = {}; trouble('views', ''); });
  events.addEventListener('error', () => {
    trouble('views', 'exanetctl ui does not answer: it has ended, or too many pages are open. Start it again and open the address that it prints.');
    silent('exanetctl ui');
  });
}

function pause() {
  state.paused = !state.paused;
  state.resumed = true;
  $('pause').setAttribute('aria-pressed', String(state.paused));
  $('pause').textContent = state.paused ? 'Continue' : 'Pause';
}

function reset() {
  state.zero = {};
  for (const [name, h] of Object.entries(state.batch ? state.batch.histograms : {})) state.zero[name] = h.slice();
  drawHistograms();
}

document.addEventListener('keydown', (e) => {
  if (e.ctrlKey || e.altKey || e.metaKey || $('keys').open) return;
  const typed = e.target.closest('button, a');
  switch (e.key) {
    case ' ':
      if (typed) return; // space presses it
      pause();
      break;
    case 'r': reset(); break;
    case '?': $('keys').showModal(); break;
    case 'Escape':
      state.chosen = null;
      drawFaults();
      if (state.one) drawOne();
      break;
    case 'ArrowDown': case 'ArrowUp': {
      if (e.target !== $('faults') || !state.faults.length) return;
      const list = state.faults.slice(0, rowsShown), at = state.chosen ? list.findIndex((f) => key(f) === key(state.chosen)) : -1;
      choose(list[Math.min(Math.max(at + (e.key === 'ArrowDown' ? 1 : -1), 0), list.length - 1)]);
      break;
    }
    default: return;
  }
  e.preventDefault();
});
$('pause').addEventListener('click', pause);
$('reset').addEventListener('click', reset);
$('help').addEventListener('click', () => $('keys').showModal());
$('legend').append(...stageNames.map((name) => make('span', {}, make('i', { class: 'fill-' + name }), name)));
new ResizeObserver(() => { state.dirty = true; drawOne(); }).observe($('topology'));
listen();
requestAnimationFrame(move);
