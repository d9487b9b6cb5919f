// Charts over a whole episode, all with the steps along the same axis.

const WORD_ROWS = 8;
const WORD_HEIGHT = 20;
const SNAP = 6; // pixels from which a click goes to a mark
const HUES = [212, 28, 145, 330, 265, 178, 48, 0];

/** Return a colour of the style sheet as the canvas understands it. */
function colour(name) {
  const probe = document.getElementById("said");
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

function wordColour(rank, lightness = 52) {
  return rank < HUES.length ? `hsl(${HUES[rank]} 62% ${lightness}%)` : "hsl(0 0% 55%)";
}

/** A chart painted once an episode, with a cursor that is drawn over a copy of it. */
class Track {
  constructor(name, height, paint) {
    this.height = height;
    this.paint = paint;
    this.painted = document.createElement("canvas");
    this.element = document.createElement("div");
    this.element.className = "track";
    this.label = document.createElement("div");
    this.label.className = "name";
    this.title = document.createElement("h2");
    this.title.textContent = name;
    this.output = document.createElement("output");
    this.label.append(this.title, this.output);
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", `${name} over the episode`);
    this.canvas.style.height = `${height}px`;
    this.element.append(this.label, this.canvas);
  }

  /** Paint anew, for `length` steps at the width the page gives. */
  prepare(length) {
    this.length = length;
    this.width = this.canvas.clientWidth;
    const ratio = window.devicePixelRatio || 1;
    for (const canvas of [this.canvas, this.painted]) {
      canvas.width = Math.max(1, Math.round(this.width * ratio));
      canvas.height = Math.round(this.height * ratio);
    }
    const context = this.painted.getContext("2d");
    context.scale(ratio, ratio);
    this.cell = this.width / length;
    this.paint(context, this);
    this.cursorColour = colour("cursor");
  }

  /** Show the chart with the cursor at a step. */
  show(step) {
    const context = this.canvas.getContext("2d");
    const ratio = this.canvas.width / Math.max(1, this.width);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.drawImage(this.painted, 0, 0);
    context.scale(ratio, ratio);
    context.fillStyle = this.cursorColour;
    context.globalAlpha = 0.14;
    context.fillRect(step * this.cell, 0, this.cell, this.height);
    context.globalAlpha = 1;
    context.fillRect((step + 0.5) * this.cell - 0.75, 0, 1.5, this.height);
    this.mark?.(context, step);
  }

  /** Return the step of the nearest mark if one is close to a place (0 left, 1 right), else nothing. */
  stopAt(place) {
    const distance = (stop) => Math.abs((stop + 0.5) / this.length - place) * this.width;
    const [nearest] = (this.stops ?? []).toSorted((a, b) => distance(a) - distance(b));
    return nearest !== undefined && distance(nearest) <= SNAP ? nearest : undefined;
  }

  stepAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const place = (event.clientX - box.left) / box.width;
    const step = this.stopAt(place) ?? Math.floor(place * this.length);
    return Math.max(0, Math.min(this.length - 1, step));
  }
}

/** Paint numbers as a line above a base line at zero. */
function paintLine(values) {
  return (context, track) => {
    const low = Math.min(0, ...values);
    const high = Math.max(0, ...values);
    const span = high - low || 1;
    const y = (value) => 3 + (1 - (value - low) / span) * (track.height - 6);
    context.fillStyle = colour("track");
    context.fillRect(0, y(0) - 0.5, track.width, 1);
    const line = new Path2D();
    values.forEach((value, t) => line.lineTo((t + 0.5) * track.cell, y(value)));
    const area = new Path2D(line);
    area.lineTo((values.length - 0.5) * track.cell, y(0));
    area.lineTo(0.5 * track.cell, y(0));
    context.strokeStyle = context.fillStyle = colour("accent");
    context.globalAlpha = 0.12;
    context.fill(area);
    context.globalAlpha = 1;
    context.lineWidth = 1.6;
    context.lineJoin = "round";
    context.stroke(line);
  };
}

/** Return the words of an episode, the most frequent first, with the steps they were read at. */
function rankedWords(episode) {
  const steps = new Map();
  for (let t = 0; t < episode.length; t++) {
    for (const { word } of episode.wordsAt(t)) {
      if (!steps.has(word)) steps.set(word, []);
      steps.get(word).push(t);
    }
  }
  return [...steps].sort((a, b) => b[1].length - a[1].length);
}

/** Paint one row of cells a word, the paler the less similar, and one row for all other words. */
function paintWords(episode, ranks, rows) {
  return (context, track) => {
    const all = Array.from(episode.similarities.values);
    const low = Math.min(...all) / 10000;
    const span = Math.max(...all) / 10000 - low || 1;
    context.fillStyle = colour("track");
    for (let row = 0; row < rows; row++) {
      context.fillRect(0, row * WORD_HEIGHT + WORD_HEIGHT / 2 - 0.5, track.width, 1);
    }
    for (let t = 0; t < episode.length; t++) {
      for (const { word, similarity } of episode.wordsAt(t)) {
        const rank = ranks.get(word);
        context.fillStyle = rank < WORD_ROWS ? wordColour(rank) : wordColour(Infinity);
        context.globalAlpha = 0.35 + (0.65 * (similarity - low)) / span;
        const gap = track.cell > 4 ? 1 : 0;
        const top = Math.min(rank, WORD_ROWS) * WORD_HEIGHT + 3;
        context.fillRect(t * track.cell, top, Math.max(1, track.cell - gap), WORD_HEIGHT - 6);
      }
    }
    context.globalAlpha = 1;
  };
}

/** Return numbers 0..1 a share is shown by: the largest of the episode is 1. */
function strengthOf(shares) {
  let largest = 0;
  for (const share of shares) largest = Math.max(largest, share);
  return (share) => Math.sqrt(share / (largest || 1));
}

/** Paint which step (down) looks at which (across). */
function paintHeat(looks, shares) {
  return (context, track) => {
    const length = track.length;
    const [red, green, blue] = colour("accent").match(/[\d.]+/g).map(Number);
    const image = new ImageData(length, length);
    const strength = strengthOf(shares);
    for (let t = 0; t < length; t++) {
      const { begin, count, first } = looks.row(t);
      for (let n = 0; n < count; n++) {
        const opacity = 255 * strength(shares[begin + n]);
        image.data.set([red, green, blue, opacity], 4 * (t * length + first + n));
      }
    }
    const small = document.createElement("canvas");
    small.width = small.height = length;
    small.getContext("2d").putImageData(image, 0, 0);
    paintTriangle(context, track);
    context.imageSmoothingEnabled = length > track.width;
    context.drawImage(small, 0, 0, track.width, track.height);
  };
}

/** Paint the ground of a heat map: no step looks ahead. */
function paintTriangle(context, track) {
  const rows = track.length;
  const height = track.height / rows;
  const ground = new Path2D();
  for (let t = 0; t < rows; t++) ground.rect(0, t * height, (t + 1) * track.cell, height + 0.5);
  context.fillStyle = colour("track");
  context.globalAlpha = 0.6;
  context.fill(ground);
  context.globalAlpha = 1;
}

/** Paint a row of marks for each kind of event: a bar at every step that has one. */
function paintEvents(kinds) {
  return (context, track) => {
    kinds.forEach(({ steps, hue }, row) => {
      const middle = (row + 0.5) * WORD_HEIGHT;
      context.fillStyle = colour("track");
      context.fillRect(0, middle - 0.5, track.width, 1);
      context.fillStyle = colour(hue);
      const width = Math.max(3, Math.min(8, track.cell - 1));
      for (const t of steps) context.fillRect((t + 0.5) * track.cell - width / 2, middle - 7, width, 14);
    });
  };
}
