// The nodes in a circle, with their ranks, and this node's links to all others.

const MOST_CARDS = 8; // of more nodes, only numbers
const MOST_LABELS = 4; // of more, the list below says it
const DOTS_A_ROW = 8;
const MOST_DOTS = 32;
const STRAGGLES = 0.25; // others wait for it for this part of the time
const SILENT_SECONDS = 2;

function rankState(rank) {
  if (rank.left) return "left";
  if (!rank.joined) return "missing";
  return rank.straggling >= STRAGGLES ? "straggling" : "joined";
}

const RANK_WORDS = {
  joined: "joined",
  straggling: "holds others up",
  left: "left",
  missing: "missing",
  elsewhere: "on another node",
};

function linkState(link, slow) {
  if (!link.connected) return "down";
  if (link.silent_seconds >= SILENT_SECONDS) return "silent";
  return slow ? "slow" : "up";
}

const LINK_WORDS = {
  up: () => "connected",
  slow: (link, than) => `connected, slower than ${than}`,
  silent: (link) => `silent for ${span(link.silent_seconds)}`,
  down: () => "down",
};

// Links that reach less than half of what they used to, or of what the others do, or take
// several times as long: to each, than what they are slower.
function slowLinks(links) {
  const lags = (link, name, worse) => {
    if (!(link[name] > 0)) return false;
    const others = links.filter((each) => each !== link && each[name] > 0);
    return others.length > 0 && worse(link[name], median(others.map((each) => each[name])));
  };
  const behind = (link) =>
    lags(link, "bandwidth", (own, usual) => own < usual / 2) ||
    lags(link, "round_trip_seconds", (own, usual) => own > 4 * usual + 0.002);
  const slow = new Map();
  for (const link of links) {
    if (link.bandwidth < link.usual_bandwidth / 2) slow.set(link.node, "it was");
    else if (behind(link)) slow.set(link.node, "the others");
  }
  return slow;
}

class Picture {
  constructor() {
    this.svg = draw("svg", { class: "picture", role: "img" });
    this.shape = "";
    this.links = new Map();
    this.dots = new Map();
  }

  update(job, slow) {
    const width = Math.max(280, Math.floor(this.svg.parentNode.clientWidth));
    const ranks = job.nodes.map((node) => node.ranks.join());
    const shape = JSON.stringify([width, job.node, job.nodes.map((each) => each.host), ranks]);
    if (shape !== this.shape) {
      this.shape = shape;
      this.build(job, width);
    }
    for (const link of job.links) this.showLink(link, slow.get(link.node));
    for (const rank of job.ranks) this.showRank(rank);
    mark(this.svg, "aria-label", inWords(job, slow));
  }

  build(job, width) {
    this.links.clear();
    this.dots.clear();
    const layout = new Layout(job, width);
    this.svg.replaceChildren();
    mark(this.svg, "viewBox", `0 0 ${width} ${layout.height}`);
    mark(this.svg, "height", layout.height);
    if (layout.count > 2) this.svg.append(layout.ring());
    const labels = draw("g");
    for (const link of job.links) {
      if (link.node >= layout.count) continue;
      const parts = layout.link(job.node, link.node);
      this.links.set(link.node, parts);
      this.svg.append(parts.line, parts.out, parts.in);
      labels.append(parts.label);
    }
    job.nodes.forEach((node, index) => this.svg.append(this.node(layout, job, node, index)));
    this.svg.append(labels);
  }

  node(layout, job, node, index) {
    const { x, y } = layout.places[index];
    const group = draw("g", { transform: `translate(${x} ${y})` });
    const own = index === job.node;
    group.setAttribute("class", own ? "node own" : "node");
    group.append(draw("title", {}, `node ${index}, ${node.host} at ${node.address}`));
    if (layout.compact) {
      group.append(draw("circle", { r: 17 }), draw("text", { y: 5 }, String(index)));
      return group;
    }
    const { card, high } = layout;
    const box = { x: -card / 2, y: -high / 2, width: card, height: high, rx: 10 };
    group.append(draw("rect", box));
    const heading = own ? `node ${index}, here` : `node ${index}`;
    group.append(draw("text", { y: -high / 2 + 20, class: "name" }, heading));
    const host = shorten(node.host || node.address, Math.floor(card / 6.6));
    group.append(draw("text", { y: -high / 2 + 35, class: "small" }, host));
    this.ranks(group, layout, node.ranks, -high / 2 + 52);
    return group;
  }

  ranks(group, layout, ranks, top) {
    if (ranks.length > MOST_DOTS) {
      group.append(draw("text", { y: top + 4, class: "small" }, `${ranks.length} ranks`));
      return;
    }
    ranks.forEach((rank, place) => {
      const row = Math.floor(place / layout.dots);
      const inRow = Math.min(layout.dots, ranks.length - row * layout.dots);
      const x = ((place % layout.dots) - (inRow - 1) / 2) * 21;
      const dot = draw("g", { transform: `translate(${x} ${top + row * 21})`, class: "dot" });
      const title = draw("title", {}, `rank ${rank}: ${RANK_WORDS.elsewhere}`);
      dot.append(title, draw("circle", { r: 9 }), draw("text", { y: 3.5 }, String(rank)));
      this.dots.set(rank, dot);
      group.append(dot);
    });
  }

  showRank(rank) {
    const dot = this.dots.get(rank.rank);
    if (!dot) return;
    const state = rankState(rank);
    mark(dot, "class", `dot ${state}`);
    put(dot.firstChild, `rank ${rank.rank}: ${RANK_WORDS[state]}`);
  }

  showLink(link, than) {
    const state = linkState(link, than);
    const parts = this.links.get(link.node);
    if (!parts) return;
    const flows = link.sent_rate + link.received_rate > 0 && state !== "down";
    const thick = flows ? Math.min(6, 1.5 + Math.log10(1 + link.sent_rate / 1e5)) : 1.5;
    mark(parts.line, "class", `link ${state}`);
    mark(parts.line, "stroke-width", thick.toFixed(1));
    mark(parts.out, "class", link.sent_rate > 0 && flows ? "flow out" : "still");
    mark(parts.in, "class", link.received_rate > 0 && flows ? "flow in" : "still");
    const words = [
      state === "up" || state === "slow" ? "" : LINK_WORDS[state](link),
      flows ? `\u2191 ${rate(link.sent_rate)}` : "",
      flows ? `\u2193 ${rate(link.received_rate)}` : "",
      known(link.round_trip_seconds, (seconds) => `\u21c4 ${time(seconds)}`) || "",
    ];
    const said = words.filter(Boolean);
    [...parts.label.children].forEach((line, place) => put(line, said[place] || ""));
    mark(parts.label, "class", `label ${state}`);
  }
}

// Where things are, for a picture so wide.
class Layout {
  constructor(job, width) {
    this.count = job.nodes.length;
    this.compact = this.count > MOST_CARDS;
    this.dots = DOTS_A_ROW;
    const most = Math.max(1, ...job.nodes.map((node) => node.ranks.length));
    const rows = most > MOST_DOTS ? 1 : Math.ceil(most / DOTS_A_ROW);
    const wide = this.count === 2 ? (width - 96) / 2 : width / 3.1;
    this.card = Math.max(96, Math.min(186, wide));
    if (!this.compact) this.dots = Math.max(3, Math.floor((this.card - 8) / 21));
    this.high = 62 + 21 * (most > MOST_DOTS ? rows : Math.ceil(most / this.dots) || 1) - 9;
    this.width = width;
    this.places = this.place(job.node);
  }

  place(own) {
    const { count, width } = this;
    const half = this.compact ? 24 : this.card / 2 + 3;
    const tall = this.compact ? 48 : this.high;
    if (count < 3) {
      this.height = Math.max(tall + 28, 116);
      const middle = this.height / 2;
      const edge = Math.min(half + 24, Math.max(half, (width - 96) / 4));
      const sides = count === 1 ? [width / 2] : [edge, width - edge];
      return sides.map((x) => ({ x, y: middle }));
    }
    const across = Math.min(width / 2 - half, 290);
    const up = this.compact ? Math.min(230, count * 9 + 40) : Math.max(150, 38 * count);
    this.height = Math.ceil(2 * up + tall + 12);
    return Array.from({ length: count }, (_, index) => {
      const angle = (2 * Math.PI * (index - own)) / count - Math.PI / 2;
      const x = width / 2 + across * Math.cos(angle);
      return { x, y: this.height / 2 + up * Math.sin(angle) };
    });
  }

  ring() {
    const points = this.places.map(({ x, y }) => `${x.toFixed(1)},${y.toFixed(1)}`);
    return draw("polygon", { points: points.join(" "), class: "ring" });
  }

  link(own, peer) {
    const [from, to] = [this.places[own], this.places[peer]];
    const length = Math.hypot(to.x - from.x, to.y - from.y) || 1;
    const [aside, along] = [(to.y - from.y) / length, (to.x - from.x) / length];
    const line = (shift) =>
      draw("line", {
        x1: from.x + aside * shift,
        y1: from.y - along * shift,
        x2: to.x + aside * shift,
        y2: to.y - along * shift,
      });
    const [x, y] = [(from.x + to.x) / 2, (from.y + to.y) / 2];
    // Above and below a level line; on others beneath one another, upon it.
    const heights = this.count > 2 ? [-10, 5, 20, 35] : [-12, 20, 35, 50];
    const rows = heights.map((dy) => draw("text", { x, y: y + dy }));
    const label = draw("g", {}, ...(this.count > MOST_LABELS ? [] : rows));
    return { line: line(0), out: line(4), in: line(-4), label };
  }
}

function inWords(job, slow) {
  const links = job.links.map((link) => {
    const state = LINK_WORDS[linkState(link, slow.has(link.node))](link, slow.get(link.node));
    const sent = link.sent_rate > 0 ? `, sends ${rate(link.sent_rate)}` : "";
    return `node ${link.node}: ${state}${sent}`;
  });
  const linked = links.length ? ` Links to ${links.join("; ")}.` : "";
  return `${job.nodes.length} nodes; this is node ${job.node}.${linked}`;
}
