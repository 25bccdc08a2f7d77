// One job: what it costs, what is wrong with it, its picture, its ranks and its links.

const WINDOW_MILLISECONDS = 10000;
const STEM = { copy_in: "copy in", copy_out: "copy out", local_sum: "local sum" };
Object.assign(STEM, { wait_local: "wait for ranks", wait_peers: "wait for nodes" });

const stageName = (stage) => STEM[stage] || stage.replaceAll("_", " ");

// Where the time went lately: the difference between now and some seconds ago.
class Ledger {
  constructor() {
    this.seen = [];
  }

  add(at, job) {
    const last = this.seen[this.seen.length - 1];
    // A daemon that is new, or takes the job up again, counts from the start.
    if (last && (job.ledger_seconds < last.seconds || job.rounds_done < last.rounds)) {
      this.seen = [];
    }
    const { stages, ledger_seconds: seconds, rounds_done: rounds } = job;
    this.seen.push({ at, stages, seconds, rounds });
    while (this.seen[0].at < at - WINDOW_MILLISECONDS) this.seen.shift();
  }

  // Of every stage its part; null where no time was spent.
  lately() {
    const nothing = { at: 0, stages: {}, seconds: 0, rounds: 0 };
    const [first, last] = [this.seen[0], this.seen[this.seen.length - 1]];
    const moved = last.seconds > first.seconds;
    const from = moved ? first : nothing;
    const seconds = last.seconds - from.seconds;
    if (!(seconds > 0)) return null;
    const parts = Object.keys(STAGES).map((stage) => {
      const spent = (last.stages[stage] || 0) - (from.stages[stage] || 0);
      return { stage, part: Math.max(0, spent) / seconds };
    });
    const rounds = last.rounds - from.rounds;
    const since = moved ? (last.at - first.at) / 1000 : 0;
    return { parts, since, each: rounds > 0 ? seconds / rounds : 0 };
  }

  roundsPerSecond() {
    const [first, last] = [this.seen[0], this.seen[this.seen.length - 1]];
    const seconds = (last.at - first.at) / 1000;
    return seconds > 0 ? (last.rounds - first.rounds) / seconds : 0;
  }
}

// What is wrong, the worst first: [grade, words].
function troubles(job, slow) {
  const said = [];
  if (job.failure) said.push(["bad", `It has failed: ${job.failure}`]);
  const missing = job.ranks
    .filter((rank) => rankState(rank) === "missing")
    .map((rank) => rank.rank);
  const verb = missing.length === 1 ? "is" : "are";
  if (missing.length)
    said.push(["bad", `${listed("Rank", missing)} of this node ${verb} missing.`]);
  for (const link of job.links) {
    const state = linkState(link, slow.has(link.node));
    const silent = span(link.silent_seconds);
    if (state === "down") said.push(["bad", `The link to node ${link.node} is down.`]);
    if (state === "silent")
      said.push(["bad", `Node ${link.node} has been silent for ${silent}.`]);
  }
  for (const each of job.stalled) said.push(["bad", stalledWords(each)]);
  for (const rank of job.ranks.filter((each) => rankState(each) === "straggling")) {
    const part = percent(rank.straggling);
    said.push([
      "late",
      `Rank ${rank.rank} holds the others up: they wait for it ${part} of the time.`,
    ]);
  }
  for (const link of job.links.filter((each) => slow.has(each.node) && each.connected)) {
    const reached = known(link.bandwidth, (number) => `, it reaches ${rate(number)}`) || "";
    const than = slow.get(link.node);
    said.push(["late", `The link to node ${link.node} is slower than ${than}${reached}.`]);
  }
  return said;
}

function stalledWords(round) {
  const whom = round.whom || (round.ranks.length ? listed("rank", round.ranks) : "other nodes");
  return `Round ${round.sequence} has waited ${time(round.seconds)} for ${whom}.`;
}

function summary(lately) {
  if (!lately) return "";
  const most = lately.parts.reduce((one, other) => (other.part > one.part ? other : one));
  const name = `\u201c${stageName(most.stage)}\u201d`;
  const meaning = STAGES[most.stage].replace(/^for /, "waiting for ");
  return `The largest part, ${percent(most.part)}, is ${name}: ${meaning}.`;
}

class JobCard {
  constructor(generation) {
    this.ledger = new Ledger();
    this.picture = new Picture();
    this.part = {};
    const heading = `job-${generation}`;
    this.node = make("section", { class: "card job", "aria-labelledby": heading });
    this.part.title = make("h2", { id: heading });
    this.part.state = make("span", { class: "state" });
    this.part.place = make("p", { class: "quiet" });
    this.part.troubles = make("ul", { class: "troubles", "aria-live": "polite" });
    this.part.key = make("dl", { class: "key" });
    const head = make("div", { class: "head" }, this.part.title, this.part.state);
    this.node.append(head, this.part.place, this.part.troubles, this.part.key);
    const picture = make("div", { class: "canvas" }, this.picture.svg);
    this.node.append(make("div", { class: "halves" }, picture, this.stages()));
    this.node.append(this.ranks(), this.links());
  }

  stages() {
    this.part.bar = make("div", { class: "bar", role: "img" });
    this.part.legend = make("ul", { class: "legend" });
    this.part.since = make("p", { class: "quiet" });
    this.part.most = make("p", { class: "most" });
    const { bar, legend, since, most } = this.part;
    const heading = make("h3", {}, "Where the time goes");
    this.part.stages = make("div", { class: "stages" }, heading, bar, most, legend, since);
    return this.part.stages;
  }

  ranks() {
    this.part.columns = make("tr");
    this.part.ranks = make("tbody");
    const head = make("thead", {}, this.part.columns);
    const table = make("table", { class: "ranks" }, head, this.part.ranks);
    return make("div", { class: "part" }, make("h3", {}, "Ranks of this node"), table);
  }

  links() {
    this.part.links = make("ul", { class: "links" });
    this.part.linked = make("div", { class: "part" }, make("h3", {}, "Links"), this.part.links);
    return this.part.linked;
  }

  update(at, job) {
    const slow = slowLinks(job.links);
    this.ledger.add(at, job);
    this.showHead(job, job.failure ? "failed" : job.stalled.length ? "stalled" : "running");
    this.showTroubles(troubles(job, slow));
    this.showKey(job);
    this.showStages(this.ledger.lately());
    this.showRanks(job.ranks);
    this.showLinks(job, slow);
    this.picture.update(job, slow);
  }

  // The daemon does not speak of it any more.
  end(seconds, failure) {
    this.showState("ended", `ended ${span(seconds)} ago`);
    mark(this.node, "class", "card job ended");
    if (failure) this.showTroubles([["bad", `It has failed: ${failure}`]]);
  }

  showHead(job, state) {
    mark(this.node, "class", "card job");
    put(this.part.title, `Job ${shorten(job.generation, 9)}`);
    mark(this.part.title, "title", job.generation);
    const nodes = job.nodes.length;
    const place = nodes > 1 ? `node ${job.node} of ${nodes}` : "one node";
    put(this.part.place, `${place}, world size ${job.world_size}`);
    this.showState(state, state);
  }

  showState(state, words) {
    put(this.part.state, words);
    mark(this.part.state, "class", `state ${state}`);
  }

  showTroubles(said) {
    const update = (node, [grade, words]) => {
      mark(node, "class", grade);
      put(node, words);
    };
    const keyed = said.map((each, place) => [place, each]);
    follow(
      this.part.troubles,
      keyed,
      ([place]) => place,
      () => make("li"),
      (node, [, each]) => update(node, each),
    );
    this.part.troubles.hidden = said.length === 0;
  }

  showKey(job) {
    const trained = job.ranks.filter((rank) => rank.step_seconds > 0);
    const mean = (name) => total(trained.map((rank) => rank[name])) / trained.length;
    const pace = this.ledger.roundsPerSecond();
    const sum = (name) => total(job.links.map((link) => link[name]));
    figures(this.part.key, [
      ["step time", trained.length ? time(mean("step_seconds")) : null],
      ["communication", trained.length ? percent(mean("communication")) : null],
      ["rounds done", count(job.rounds_done)],
      ["rounds/s", known(pace, figure)],
      ["open", count(job.rounds_open)],
      ["failed", known(job.rounds_failed, count)],
      ["sending", known(sum("sent_rate"), rate)],
      ["receiving", known(sum("received_rate"), rate)],
      ["taken up again", known(job.attempt, (times) => `${times} \u00d7`)],
    ]);
  }

  showStages(lately) {
    this.part.stages.hidden = !lately;
    if (!lately) return;
    const { bar, legend, since, most } = this.part;
    follow(
      bar,
      lately.parts,
      ({ stage }) => stage,
      ({ stage }) => make("span", { class: `stage ${stage}` }),
      (node, { stage, part }) => {
        node.style.flexGrow = part.toFixed(4);
        node.title = `${stageName(stage)}: ${percent(part)}`;
      },
    );
    const said = lately.parts.map(({ stage, part }) => `${stageName(stage)} ${percent(part)}`);
    mark(bar, "aria-label", said.join(", "));
    follow(
      legend,
      lately.parts,
      ({ stage }) => stage,
      ({ stage }) =>
        make(
          "li",
          { "data-stage": stage, title: STAGES[stage] },
          make("span", { class: `swatch ${stage}`, "aria-hidden": "true" }),
          make("span", { class: "stage-name" }, stageName(stage)),
          make("span", { class: "number" }),
        ),
      (node, { part }) => {
        put(node.lastChild, percent(part));
        mark(node, "class", part < 0.005 ? "none" : "");
      },
    );
    put(most, summary(lately));
    const when =
      lately.since > 0 ? `in the last ${Math.round(lately.since)} s` : "since the job began";
    put(since, lately.each > 0 ? `${when}; a round takes ${time(lately.each)}` : when);
  }

  showRanks(ranks) {
    const trained = ranks.some((rank) => rank.step_seconds > 0);
    const columns = [
      ["rank", (rank) => String(rank.rank)],
      ["state", (rank) => RANK_WORDS[rankState(rank)]],
      ["step", (rank) => known(rank.step_seconds, time) || DASH, trained],
      [
        "in comm.",
        (rank) => (rank.step_seconds > 0 ? percent(rank.communication) : DASH),
        trained,
      ],
      ["waited for", (rank) => percent(rank.straggling)],
      [
        "came last",
        (rank) => count(rank.last_arrivals),
        ranks.some((rank) => rank.last_arrivals),
      ],
      ["process", (rank) => (rank.pid ? `${rank.host}, ${rank.pid}` : DASH)],
    ].filter(([, , there]) => there !== false && there !== 0);
    follow(
      this.part.columns,
      columns,
      ([name]) => name,
      ([name]) => make("th", { scope: "col", "data-column": name }, name),
      () => {},
    );
    follow(
      this.part.ranks,
      ranks,
      (rank) => rank.rank,
      () => make("tr"),
      (row, rank) => {
        mark(row, "class", rankState(rank));
        mark(row, "data-rank", rank.rank);
        follow(
          row,
          columns,
          ([name]) => name,
          ([name]) => make("td", { "data-column": name }),
          (cell, [, words]) => put(cell, words(rank)),
        );
      },
    );
  }

  showLinks(job, slow) {
    this.part.linked.hidden = job.links.length === 0;
    follow(
      this.part.links,
      job.links,
      (link) => link.node,
      (link) => {
        const name = make("strong");
        const state = make("span", { class: "link-state" });
        const head = make("p", {}, name, " ", state);
        return make(
          "li",
          { "data-node": link.node },
          head,
          make("p", { class: "quiet" }),
          make("dl"),
        );
      },
      (node, link) => this.showLink(node, link, slow.get(link.node), job),
    );
  }

  showLink(node, link, than, job) {
    const state = linkState(link, than);
    const [head, address, list] = node.children;
    const peer = job.nodes[link.node];
    mark(node, "class", state);
    put(head.firstChild, `node ${link.node}`);
    put(head.lastChild, LINK_WORDS[state](link, than));
    put(address, peer && peer.host ? `${peer.host}, ${link.address}` : link.address);
    figures(list, [
      ["sending", known(link.sent_rate, rate)],
      ["receiving", known(link.received_rate, rate)],
      ["reaches", known(link.bandwidth, rate)],
      ["round trip", known(link.round_trip_seconds, time)],
      ["waiting", known(link.queued_bytes, size)],
      ["sent", size(link.bytes_sent)],
      ["received", size(link.bytes_received)],
      ["connections", String(link.connections)],
      ["opened again", known(link.reopened, (times) => `${times} \u00d7`)],
      ["sent again", known(link.resent, count)],
      ["damaged", known(link.damaged, count)],
    ]);
  }
}
