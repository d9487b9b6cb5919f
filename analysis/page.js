// The page: one state (episode, step, layer and head), shown whenever it changes.

const data = JSON.parse(document.getElementById("data").textContent);
const element = (id) => document.getElementById(id);
const MOST_TARGETS = 6;
const LEAST_SHARE = 0.005;
const LEAST_NAMED = 0.001;
const MOST_RUNS = 6;
const MOST_NUMBERS = 24;
const MOST_NUMBER_TRACKS = 4;
const LONG_NAME = 12;
const SALIENCY = -1; // in the place of a layer
const MOST_SUGGESTIONS = 16;

const pictures = {};
let episode = null;
let number = 0;
let step = 0;
let tracks = {};
let looks = null; // the episode's attention, or its saliency
let shares = null;
let ranks = new Map();
let loading = 0;
let largest = 1;
let worth = [0, 1];

const percent = (share) => `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;
const decimal = (value) => {
  const text = value.toFixed(Math.abs(value) >= 100 ? 0 : 2);
  return Number(text) === 0 ? text.replace("-", "") : text.replace("-", "−");
};
const create = (tag, className, text) => {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
};

function buildHeader() {
  document.title = data.title;
  element("title").textContent = data.title;
  for (const [name, value] of Object.entries(data.facts)) {
    const pair = create("div");
    pair.append(create("dt", "", name), create("dd", "", value));
    element("facts").append(pair);
  }
}

/** Show the meaning of the whole world's colours, if the environment names it. */
function buildLegend() {
  element("legend").textContent = data.legend;
  element("legend").hidden = !data.legend;
}

function buildEpisodes() {
  data.episodes.forEach((one, n) => {
    const length = one.actions.shape[0];
    const button = create("button");
    button.type = "button";
    button.append(
      create("span", "number", n + 1),
      create("span", "return", decimal(one.return)),
      create("span", "length", `${length} steps`),
    );
    button.setAttribute("aria-label", `Episode ${n + 1}, return ${decimal(one.return)}, ${length} steps`);
    button.addEventListener("click", () => choose(n));
    const item = create("li");
    item.append(button);
    element("episodes").append(item);
  });
}

/** Make a row for each action that is shown. */
function buildActions() {
  const rows = Array.from({ length: episode.judgedActions }, () => {
    const item = create("li");
    item.append(create("span"), create("i"), create("b"));
    return item;
  });
  element("probabilities").replaceChildren(...rows);
  const isLong = data.actions.some((name) => name.length > LONG_NAME);
  element("probabilities").classList.toggle("long", isLong);
  const count = data.actions.length;
  element("choice-note").textContent = episode.ranked ? `The best ${rows.length} of ${count}. ` : "";
}

/** Make a row for each number of a vector, with the scale that all of them share. */
function buildNumbers() {
  const [, count] = episode.numbers.shape;
  const rows = [];
  for (let n = 0; n < Math.min(count, MOST_NUMBERS); n++) {
    const item = create("li");
    item.append(create("span", "", data.numbers[n] || `number ${n + 1}`), create("i", "signed"), create("b"));
    rows.push(item);
  }
  element("numbers").replaceChildren(...rows);
  largest = episode.numbers.values.reduce((most, value) => Math.max(most, Math.abs(value)), 0) || 1;
  const more = count > MOST_NUMBERS ? ` ${count - MOST_NUMBERS} more are not shown.` : "";
  const kind = episode.views ? "Numbers beside the picture." : "Numbers, no picture.";
  element("told-note").textContent = `${kind} Bars reach from −${decimal(largest)} to ${decimal(largest)}.${more}`;
}

function buildSelectors() {
  for (const speed of SPEEDS) element("speed").append(new Option(`${speed} / s`, speed));
  element("speed").value = 4;
  const { attention, saliency } = data.episodes[0];
  const [layers, heads] = attention?.shape ?? [0, 0];
  for (let n = 0; n < layers; n++) element("layer").append(new Option(`attention of layer ${n + 1}`, n));
  if (saliency) element("layer").append(new Option("saliency", SALIENCY));
  element("layer").value = attention ? layers - 1 : SALIENCY;
  element("head").append(new Option("mean of all", -1));
  for (let n = 0; n < heads; n++) element("head").append(new Option(n + 1, n));
}

/** Go to an episode, at its first step. */
async function choose(n) {
  const request = ++loading;
  const loaded = await Episode.load(data.episodes[n], data.words, data.sentences);
  if (request !== loading) return;
  episode = loaded;
  number = n;
  step = 0;
  pause();
  [...element("episodes").children].forEach((item, index) => {
    item.firstChild.setAttribute("aria-current", index === n);
  });
  element("episodes").children[n].scrollIntoView({ block: "nearest", inline: "nearest" });
  element("slider").max = episode.length - 1;
  const unexplained = !episode.judgedActions;
  const hidden = { view: !episode.views, told: !episode.numbers, whole: !episode.wholes };
  Object.assign(hidden, { probabilities: unexplained, retrieval: !episode.retrieved });
  Object.assign(hidden, { texts: !episode.text && !episode.caption, suggested: !episode.suggestions });
  Object.assign(hidden, { unlocking: !episode.unlocked, wanted: !episode.suggestions && !episode.unlocked });
  for (const [id, away] of Object.entries(hidden)) element(id).hidden = away;
  element("stage").classList.toggle("no-whole", hidden.whole && (hidden.view || hidden.told));
  element("stage").classList.toggle("no-words", hidden.retrieval);
  if (episode.numbers) buildNumbers();
  buildActions();
  if (episode.actionValues) readWorth();
  buildTracks();
  paint();
}

/** Find the scale of action values, and explain their bars. */
function readWorth() {
  const { values } = episode.actionValues;
  worth = [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))];
  element("choice-note").textContent +=
    `The return that each action promises, from ${decimal(worth[0])} to ${decimal(worth[1])} in this episode; the highest is taken.`;
}

function buildTracks() {
  const paid = episode.goalRewards ? "Paid for goals so far" : "Return so far";
  tracks = { return: new Track(paid, 44, paintLine(episode.returns)) };
  if (episode.goals || episode.achievements) tracks.events = eventTrack();
  if (episode.values) tracks.value = new Track("Value", 44, paintLine(Array.from(episode.values.values)));
  if (episode.numbers) addNumberTracks();
  if (episode.retrieved) tracks.words = wordTrack();
  if (episode.entropy) {
    tracks.entropy = new Track("Entropy of the retrieval", 44, paintLine(Array.from(episode.entropy.values)));
  }
  looks = null; // saliency is that of the first episode alone
  element("looks").hidden = !episode.attention && !episode.saliency;
  if (episode.attention || episode.saliency) addLooksTracks();
  for (const track of Object.values(tracks)) track.canvas.addEventListener("pointerdown", follow(track));
  element("course").replaceChildren(...Object.values(tracks).map((track) => track.element));
}

/** Add a line for each of the first few numbers of a vector. */
function addNumberTracks() {
  const count = Math.min(episode.numbers.shape[1], MOST_NUMBER_TRACKS);
  for (let n = 0; n < count; n++) {
    const values = Array.from({ length: episode.length }, (_, t) => episode.numbersAt(t)[n]);
    tracks[`number${n}`] = new Track(data.numbers[n] ?? `Number ${n + 1}`, 32, paintLine(values));
  }
}

function wordTrack() {
  const ranked = rankedWords(episode);
  ranks = new Map(ranked.map(([word], rank) => [word, rank]));
  const others = ranked.slice(WORD_ROWS);
  const rows = Math.min(ranked.length, WORD_ROWS + 1);
  const track = new Track("Words", rows * WORD_HEIGHT, paintWords(episode, ranks, rows));
  const list = create("ol");
  for (const [word, steps] of ranked.slice(0, WORD_ROWS)) list.append(wordButton(word, steps));
  if (others.length) {
    const steps = [...new Set(others.flatMap(([, at]) => at))].sort((a, b) => a - b);
    list.append(wordButton(`${others.length} more`, steps));
  }
  track.label.replaceChildren(list);
  return track;
}

/** Make the line that marks goals reached and achievements, with a button that goes from one to the next. */
function eventTrack() {
  const kinds = [
    { name: "Goals reached", steps: episode.goals, hue: "accent" },
    { name: "Achievements", steps: episode.achievements, hue: "good" },
  ].filter(({ steps }) => steps);
  const track = new Track("Goals reached and achievements", kinds.length * WORD_HEIGHT, paintEvents(kinds));
  track.stops = kinds.flatMap(({ steps }) => steps);
  const list = create("ol");
  list.append(...kinds.map(({ name, steps }) => wordButton(name, steps)));
  track.label.replaceChildren(list);
  return track;
}

/** Return a button that goes from one of these steps to the next, and from the last to the first. */
function wordButton(word, steps) {
  const button = create("button");
  button.type = "button";
  button.title = `Go to the next of ${steps.length} steps`;
  button.append(create("span", "", word), create("span", "", steps.length));
  button.setAttribute("aria-label", `${word}, ${steps.length} steps: go to the next`);
  button.addEventListener("click", () => go(steps.find((t) => t > step) ?? steps[0] ?? step));
  button.dataset.word = word;
  const item = create("li");
  item.append(button);
  return item;
}

/** Read the attention, or the saliency, that is chosen, and name its charts. */
function readLooks() {
  const layers = element("layer");
  for (const option of layers.options) option.disabled = Number(option.value) === SALIENCY && !episode.saliency;
  if (Number(layers.value) === SALIENCY && !episode.saliency) layers.selectedIndex -= 1;
  const layer = Number(layers.value);
  const isSaliency = layer === SALIENCY;
  looks = isSaliency ? episode.saliency : episode.attention;
  shares = isSaliency ? looks.shares(0, 0) : looks.shares(layer, Number(element("head").value));
  element("head").parentElement.hidden = isSaliency;
  element("looks-note").hidden = !isSaliency;
  const [subject, verb] = isSaliency ? ["value", "depends on"] : ["step", "looks at"];
  tracks.looks.title.textContent = `This ${subject} ${verb}`;
  tracks.heat.title.textContent = `Every ${subject} (down) ${verb} (across)`;
}

function addLooksTracks() {
  tracks.looks = new Track("Looks back", 48, readLooks);
  tracks.looks.mark = markLooks;
  tracks.heat = new Track("Looks back, every step", 230, (context, track) => paintHeat(looks, shares)(context, track));
  readLooks();
  tracks.heat.mark = (context, at) => {
    const height = tracks.heat.height / episode.length;
    context.globalAlpha = 0.9;
    context.fillRect(0, (at + 0.5) * height - 0.5, (at + 1) * tracks.heat.cell, 1);
    context.globalAlpha = 1;
  };
  const least = data.leastAttention;
  if (least >= LEAST_NAMED) tracks.heat.label.append(create("p", "note", `Shares below ${percent(least)} are left out.`));
}

/** Draw a bar at every step that the present one looks at. */
function markLooks(context, at) {
  const { height, width, cell } = tracks.looks;
  const { begin, count, first } = looks.row(at);
  const row = shares.subarray(begin, begin + count);
  const largest = Math.max(...row, 0.01);
  context.fillStyle = colours.track;
  context.fillRect(0, height - 1, width, 1);
  context.fillStyle = colours.accent;
  row.forEach((share, n) => {
    const bar = (share / largest) * (height - 3);
    context.fillRect((first + n) * cell, height - 1 - bar, Math.max(1, cell - (cell > 4 ? 1 : 0)), bar);
  });
}

let colours = {};

/** Paint all charts anew: another episode, width, head or theme. */
function paint() {
  if (!episode) return;
  colours = { track: colour("track"), accent: colour("accent") };
  for (const track of Object.values(tracks)) track.prepare(episode.length);
  show();
}

/** Show the present step. */
function show() {
  if (episode.views) pictures.views.draw(element("view").firstElementChild, episode.views.values[step]);
  if (episode.wholes) pictures.wholes.draw(element("whole").firstElementChild, episode.wholes.values[step]);
  element("slider").value = step;
  element("slider").setAttribute("aria-valuetext", `step ${step + 1} of ${episode.length}`);
  element("step").textContent = `${step + 1} / ${episode.length}`;
  // Not `disabled`: a button in use would lose the focus.
  for (const id of ["first", "back"]) element(id).ariaDisabled = step === 0;
  for (const id of ["forward", "last"]) element(id).ariaDisabled = step === episode.length - 1;
  if (episode.numbers) showNumbersTold();
  showTexts();
  showWanted();
  showAction();
  showWords();
  if (looks) showTargets();
  showNumbers();
  for (const track of Object.values(tracks)) track.show(step);
}

function showNumbersTold() {
  const values = episode.numbersAt(step);
  [...element("numbers").children].forEach((item, n) => {
    const end = 50 + (50 * values[n]) / largest;
    item.children[1].style.setProperty("--low", `${Math.min(50, end)}%`);
    item.children[1].style.setProperty("--high", `${Math.max(50, end)}%`);
    item.children[2].textContent = decimal(values[n]);
  });
}

/** Show the texts that the agent reads, and the caption that it does not read. */
function showTexts() {
  const texts = episode.saidAt(step, "text");
  const shown = texts.map((text) => create("p", "", text));
  const [caption] = episode.saidAt(step, "caption");
  if (caption && !isTold(caption, texts)) shown.push(create("p", "untold", `Not told: ${caption}`));
  element("sentences").replaceChildren(...shown);
}

/** Return whether texts say a caption, in whole or sentence by sentence. */
function isTold(caption, texts) {
  const rest = texts.reduce((left, text) => left.replace(text, ""), caption);
  return !rest.trim() || texts.some((text) => text.includes(caption));
}

const plainName = (name) => name.replaceAll("_", " ");
const signed = (value) => (value > 0 ? `+${decimal(value)}` : decimal(value));

/** Show suggestions, the outcome of the step, and the achievements of the episode. */
function showWanted() {
  const [matched] = episode.saidAt(step, "matched");
  if (episode.suggestions) element("suggestions").replaceChildren(...suggestionChips(matched));
  if (episode.suggestions || episode.unlocked) element("outcome").replaceChildren(...outcomeChips(matched));
  if (episode.unlocked) element("achievements").replaceChildren(...achievementChips());
}

function suggestionChips(matched) {
  const suggested = episode.saidAt(step, "suggestions");
  // The reached goal comes first, so that it is among those shown.
  if (suggested.length > MOST_SUGGESTIONS) suggested.sort((a, b) => (b === matched) - (a === matched));
  const chips = suggested
    .slice(0, MOST_SUGGESTIONS)
    .map((goal) => create("li", goal === matched ? "reached" : "", goal));
  const more = suggested.length - MOST_SUGGESTIONS;
  if (more > 0) chips.push(create("li", "note", `and ${more} more`));
  if (!suggested.length) chips.push(create("li", "note", "nothing"));
  return chips;
}

function outcomeChips(matched) {
  const action = episode.actionTaken(step, data.actions);
  const chips = [create("li", "", episode.saidAt(step, "phrases")[0] ?? action)];
  const paid = episode.goalRewards?.values[step] ?? 0;
  if (matched) chips.push(create("li", "reached", `✓ ${matched} ${signed(paid)}`));
  else if (paid) chips.push(create("li", "", signed(paid)));
  if (matched && episode.changed && !episode.changed.values[step]) chips.push(create("li", "note", "without effect"));
  for (const name of episode.saidAt(step, "unlocked")) chips.push(create("li", "unlocked", `★ ${plainName(name)}`));
  return chips;
}

/** Return a button for each achievement of the episode, which goes to its step. */
function achievementChips() {
  const chips = episode.achievements.flatMap((at) => episode.saidAt(at, "unlocked").map((name) => achievementChip(name, at)));
  return chips.length ? chips : [create("li", "note", "none in this episode")];
}

function achievementChip(name, at) {
  const button = create("button", "", `${plainName(name)} · ${at + 1}`);
  button.type = "button";
  button.setAttribute("aria-label", `Go to step ${at + 1}, ${plainName(name)}`);
  button.addEventListener("click", () => go(at));
  const item = create("li", at > step ? "event ahead" : "event");
  item.append(button);
  return item;
}

/** Show the action beside the probabilities, or values, of all actions. */
function showAction() {
  const action = episode.actions.values[step];
  element("action").textContent = episode.actionTaken(step, data.actions);
  [...element("probabilities").children].forEach((item, row) => {
    const shown = episode.actionAt(step, row);
    const [share, text] = shareOf(row);
    const [name, bar, number] = item.children;
    item.classList.toggle("chosen", shown === action && episode.actions.shape.length === 1);
    name.textContent = data.actions[shown];
    bar.style.setProperty("--share", share.toFixed(4));
    number.textContent = text;
  });
}

/** Return the length of an action's bar, from 0 to 1, and the number beside it. */
function shareOf(row) {
  if (episode.probabilities) return probabilityOf(row);
  if (episode.actionValues) return worthOf(row);
  const number = episode.actionNumbers(step)[row];
  return [(number + 1) / 2, decimal(number)];
}

function probabilityOf(row) {
  const share = episode.probability(step, row);
  return [share, percent(share)];
}

function worthOf(row) {
  const value = episode.actionValue(step, row);
  const [low, high] = worth;
  return [(value - low) / (high - low || 1), decimal(value)];
}

function showWords() {
  const words = episode.wordsAt(step);
  if (!words.length) return;
  element("words").replaceChildren(
    ...words.map(({ word, similarity }) => {
      const item = create("li");
      item.style.setProperty("--hue", wordColour(Math.min(ranks.get(word), WORD_ROWS)));
      item.append(create("span", "word", word), create("span", "cosine", decimal(similarity)));
      return item;
    }),
  );
  const here = new Set(words.map(({ word }) => word));
  for (const button of tracks.words.label.querySelectorAll("button")) {
    button.classList.toggle("here", here.has(button.dataset.word));
  }
  showTrail();
  if (!episode.entropy) return;
  const spread = Math.exp(episode.entropy.values[step]);
  element("retrieval-note").textContent =
    `The nearest single token. The retrieval spreads as over ${spread.toFixed(spread < 10 ? 1 : 0)} tokens.`;
}

/** Tell the nearest words read before, equal ones in a row together, the latest first. */
function showTrail() {
  const runs = [];
  for (let t = step - 1; t >= 0 && runs.length <= MOST_RUNS; t--) {
    const [{ word }] = episode.wordsAt(t);
    const run = runs.at(-1);
    if (run?.word === word) Object.assign(run, { at: t, count: run.count + 1 });
    else runs.push({ word, at: t, count: 1 });
  }
  element("trail").replaceChildren(...runs.slice(0, MOST_RUNS).map(trailButton));
}

function trailButton({ word, at, count }) {
  const button = create("button", "", count > 1 ? `${word} ×${count}` : word);
  button.type = "button";
  button.style.setProperty("--hue", wordColour(Math.min(ranks.get(word), WORD_ROWS)));
  button.setAttribute("aria-label", `Go to step ${at + 1}, ${word}`);
  button.addEventListener("click", () => go(at));
  const item = create("li");
  item.append(button);
  return item;
}

/** List the past steps most looked at, as pictures to click. */
function showTargets() {
  const { begin, count, first } = looks.row(step);
  const looked = Array.from(shares.subarray(begin, begin + count), (share, n) => ({ share, at: first + n }));
  const past = looked.filter(({ share, at }) => at !== step && share >= LEAST_SHARE);
  past.sort((a, b) => b.share - a.share || b.at - a.at);
  const best = past.slice(0, MOST_TARGETS);
  const itself = create("li", "note", `${percent(looked.at(-1)?.share ?? 0)} at itself`);
  element("targets").replaceChildren(...best.map(target), itself);
}

function target({ share, at }) {
  const [first] = episode.wordsAt(at);
  const button = create("button");
  button.type = "button";
  const [drawn, numbers] = episode.views ? [pictures.views, episode.views] : [pictures.wholes, episode.wholes];
  const picture = create(numbers ? "canvas" : "span");
  if (numbers) drawn.draw(picture, numbers.values[at]);
  const where = first ? `step ${at + 1}, ${first.word}` : `step ${at + 1}`;
  button.append(picture, create("span", "share", percent(share)), create("span", "where", where));
  button.setAttribute("aria-label", `Go to ${where}: ${percent(share)}`);
  button.addEventListener("click", () => go(at));
  const item = create("li");
  item.append(button);
  return item;
}

function showNumbers() {
  tracks.return.output.textContent = decimal(episode.returns[step]);
  if (episode.values) tracks.value.output.textContent = decimal(episode.values.values[step]);
  for (let n = 0; tracks[`number${n}`]; n++) tracks[`number${n}`].output.textContent = decimal(episode.numbersAt(step)[n]);
  if (episode.entropy) tracks.entropy.output.textContent = `${decimal(episode.entropy.values[step])} nats`;
}

/** Go to a step and say where that is. */
function go(to) {
  pause();
  move(to);
  const words = episode.wordsAt(step).map(({ word }) => word);
  const action = episode.actionTaken(step, data.actions);
  const reached = [...episode.saidAt(step, "matched"), ...episode.saidAt(step, "unlocked").map(plainName)];
  element("said").textContent = [`Step ${step + 1}`, action, ...words, ...reached].join(", ");
}

function move(to) {
  step = Math.max(0, Math.min(episode.length - 1, to));
  show();
}

function follow(track) {
  return (event) => {
    go(track.stepAt(event));
    const drag = (moved) => move(track.stepAt(moved));
    track.canvas.addEventListener("pointermove", drag);
    const stop = () => track.canvas.removeEventListener("pointermove", drag);
    for (const end of ["pointerup", "pointercancel", "pointerleave"]) {
      track.canvas.addEventListener(end, stop, { once: true });
    }
  };
}

function switchTheme() {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = root.dataset.theme ?? (dark ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
  paint();
}

const KEYS = {
  ArrowLeft: () => go(step - 1),
  ArrowRight: () => go(step + 1),
  Home: () => go(0),
  End: () => go(episode.length - 1),
  " ": toggle,
  p: () => choose(Math.max(0, number - 1)),
  n: () => choose(Math.min(data.episodes.length - 1, number + 1)),
  "+": () => changeSpeed(1),
  "=": () => changeSpeed(1),
  "-": () => changeSpeed(-1),
  t: switchTheme,
};

/** Act on a key, unless the control in focus has a use for it. */
function press(event) {
  const action = KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  const tag = event.target.tagName;
  const taken = tag === "SELECT" || (tag === "BUTTON" && event.key === " ");
  if (!action || taken || event.ctrlKey || event.metaKey || event.altKey || !episode) return;
  event.preventDefault();
  action();
}

function listen() {
  const clicks = { first: "Home", back: "ArrowLeft", play: " ", forward: "ArrowRight", last: "End", theme: "t" };
  for (const [id, key] of Object.entries(clicks)) element(id).addEventListener("click", KEYS[key]);
  element("slider").addEventListener("input", () => go(Number(element("slider").value)));
  element("speed").addEventListener("change", () => changeSpeed(0));
  element("layer").addEventListener("change", paint);
  element("head").addEventListener("change", paint);
  document.addEventListener("keydown", press);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  new ResizeObserver(paint).observe(element("course"));
}

/** Go where the address says, as in page.html#episode=2&step=14. */
async function openAddress() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  const place = (name, count) => Math.max(1, Math.min(count, parseInt(wanted.get(name)) || 1)) - 1;
  await choose(place("episode", data.episodes.length));
  move(place("step", episode.length));
}

buildHeader();
buildLegend();
buildEpisodes();
buildSelectors();
listen();
for (const name of Object.keys(data.pictures)) pictures[name] = await Pictures.load(data.pictures[name]);
await openAddress();
