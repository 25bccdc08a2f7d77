// Asks the daemon every second, and shows what it says.

const REFRESH_MILLISECONDS = 1000;
const PATIENCE_MILLISECONDS = 4000;
const REMEMBERED_MILLISECONDS = 300000; // a job that has ended
const MOST_EVENTS = 40;

const byId = (id) => document.getElementById(id);

const jobs = new Map(); // by generation: { card, job, seen }
let answered = 0; // when the daemon last did

function show(at, status) {
  const up = span(status.uptime_seconds);
  put(byId("daemon"), `${status.address}, version ${status.version}, up ${up}`);
  document.title = `Gradwire ${status.address}`;
  put(byId("origin"), `daemon ${shorten(status.node_id, 9)}`);
  for (const job of status.jobs) {
    const known = jobs.get(job.generation) || { card: new JobCard(job.generation) };
    jobs.set(job.generation, Object.assign(known, { job, seen: at }));
  }
  for (const [generation, { seen }] of jobs) {
    if (at - seen > REMEMBERED_MILLISECONDS) jobs.delete(generation);
  }
  const shown = [...jobs.values()].sort((one, other) => other.seen - one.seen);
  // First they must be in the document: a picture is as wide as its place.
  follow(
    byId("jobs"),
    shown,
    ({ job }) => job.generation,
    ({ card }) => card.node,
    () => {},
  );
  for (const each of shown) showJob(at, each, status.events);
  byId("idle").hidden = shown.length > 0;
  showEvents(status.events);
}

function showJob(at, { card, job, seen }, events) {
  if (seen === at) {
    card.update(at, job);
    return;
  }
  const errors = events.filter(
    (event) => event.generation === job.generation && event.level === "error",
  );
  card.end(
    (at - seen) / 1000,
    job.failure || (errors.length && errors[errors.length - 1].text),
  );
}

function showEvents(events) {
  const latest = events.slice(-MOST_EVENTS).reverse();
  byId("news").hidden = latest.length === 0;
  const keyOf = (event) => `${event.time} ${event.text}`;
  follow(
    byId("events"),
    latest,
    keyOf,
    (event) => {
      const when = make("time", { datetime: new Date(event.time * 1000).toISOString() });
      when.textContent = clock(event.time * 1000);
      const level = make("span", { class: "level" }, event.level);
      const job = event.generation ? ` (job ${shorten(event.generation, 9)})` : "";
      return make("li", { class: "" }, when, level, make("span", {}, `${event.text}${job}`));
    },
    (node, event) =>
      mark(node, "class", ["warning", "error"].includes(event.level) ? event.level : "info"),
  );
}

function say(alive, at) {
  mark(byId("pulse"), "class", alive ? "pulse live" : "pulse lost");
  put(byId("pulse-text"), alive ? "live" : "no answer");
  byId("banner").hidden = alive;
  mark(byId("shown"), "class", alive ? "" : "stale");
  if (alive) return;
  const silent = `${clock(answered)}, for ${span((at - answered) / 1000)}`;
  const since = answered
    ? `The daemon has not answered since ${silent}. What is below is from then.`
    : "The daemon does not answer.";
  put(byId("banner"), since);
}

async function ask() {
  const response = await fetch("status.json", {
    cache: "no-store",
    signal: AbortSignal.timeout(PATIENCE_MILLISECONDS),
  });
  if (!response.ok) throw new Error(`it answers ${response.status}`);
  return response.json();
}

async function refresh() {
  let status = null;
  try {
    status = await ask();
  } catch {
    say(false, Date.now());
  }
  if (status) {
    answered = Date.now();
    show(answered, status);
    say(true, answered);
  }
  setTimeout(refresh, REFRESH_MILLISECONDS);
}

refresh();
