// Plays the episode: steps ahead by the clock.

const SPEEDS = [1, 2, 4, 8, 16, 32, 64];
let timer = null;

function pause() {
  clearInterval(timer);
  timer = null;
  showPlaying();
}

function play() {
  if (step === episode.length - 1) step = -1;
  clearInterval(timer);
  timer = setInterval(advance, 1000 / Number(element("speed").value));
  showPlaying();
  advance();
}

function advance() {
  move(step + 1);
  if (step === episode.length - 1) pause();
}

function showPlaying() {
  element("player").classList.toggle("playing", timer !== null);
  element("play").setAttribute("aria-label", timer === null ? "Play" : "Pause");
}

const toggle = () => (timer === null ? play() : pause());

function changeSpeed(by) {
  const select = element("speed");
  select.selectedIndex = Math.max(0, Math.min(SPEEDS.length - 1, select.selectedIndex + by));
  if (timer !== null) play();
}
