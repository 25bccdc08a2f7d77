// Numbers as people read them. Pure.

const DASH = "\u2013";

// Three digits that count: 941, 94.1, 9.41.
function figure(number) {
  if (number === 0) return "0";
  const digits = number >= 99.95 ? 0 : number >= 9.995 ? 1 : 2;
  return number.toFixed(digits);
}

function scaled(number, step, units) {
  let place = 0;
  while (number >= step * 0.9995 && place < units.length - 1) {
    number /= step;
    place += 1;
  }
  return `${place === 0 ? Math.round(number) : figure(number)} ${units[place]}`;
}

const rate = (bytesPerSecond) =>
  scaled(bytesPerSecond * 8, 1000, ["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"]);

const size = (bytes) => scaled(bytes, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);

const count = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, "\u202f");

const percent = (part) => `${Math.round(part * 100)} %`;

// How long something takes.
function time(seconds) {
  if (seconds < 0.9995e-3) return `${figure(seconds * 1e6)} \u00b5s`;
  if (seconds < 0.9995) return `${figure(seconds * 1e3)} ms`;
  if (seconds < 59.95) return `${figure(seconds)} s`;
  return span(seconds);
}

// How long something has lasted: its two largest units.
function span(seconds) {
  const whole = Math.floor(seconds);
  const parts = [
    [Math.floor(whole / 86400), "d"],
    [Math.floor(whole / 3600) % 24, "h"],
    [Math.floor(whole / 60) % 60, "min"],
    [whole % 60, "s"],
  ];
  const first = parts.findIndex(([number]) => number > 0);
  if (first < 0) return "0 s";
  return parts
    .slice(first, first + 2)
    .filter(([number]) => number > 0)
    .map(([number, unit]) => `${number} ${unit}`)
    .join(" ");
}

const clock = (milliseconds) =>
  new Date(milliseconds).toLocaleTimeString("en-GB", { hour12: false });

const shorten = (text, most) =>
  text.length > most ? `${text.slice(0, most - 1)}\u2026` : text;

// "rank 1", "ranks 1, 2 and 3".
function listed(noun, numbers) {
  const last = numbers[numbers.length - 1];
  if (numbers.length === 1) return `${noun} ${last}`;
  return `${noun}s ${numbers.slice(0, -1).join(", ")} and ${last}`;
}

const total = (numbers) => numbers.reduce((sum, each) => sum + each, 0);

function median(numbers) {
  const sorted = [...numbers].sort((one, other) => one - other);
  return sorted[Math.floor((sorted.length - 1) / 2)];
}
