// Unpacks the data of analysis/page.py.

const TYPES = { uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, int16: Int16Array, float32: Float32Array };

function bytesOf(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

/** Return a packed array's shape and numbers; nothing for nothing. */
async function unpack(packed) {
  if (!packed) return null;
  const stream = new Blob([bytesOf(packed.data)]).stream();
  const plain = stream.pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(plain).arrayBuffer();
  return { shape: packed.shape, values: new TYPES[packed.type](buffer) };
}

/** Pictures of one size, put together from the tiles of an atlas. */
class Pictures {
  static async load(packed) {
    const pictures = new Pictures();
    [pictures.height, pictures.width] = packed.size;
    [pictures.tileHeight, pictures.tileWidth] = packed.tile;
    pictures.atlasColumns = packed.columns;
    pictures.maps = await unpack(packed.maps);
    const blob = new Blob([bytesOf(packed.atlas)], { type: "image/webp" });
    pictures.atlas = await createImageBitmap(blob);
    return pictures;
  }

  /** Draw a picture onto a canvas, which takes its size. */
  draw(canvas, number) {
    if (canvas.width !== this.width) canvas.width = this.width;
    if (canvas.height !== this.height) canvas.height = this.height;
    const context = canvas.getContext("2d");
    const { tileWidth: w, tileHeight: h, atlasColumns } = this;
    const columns = this.width / w;
    const size = this.maps.shape[1];
    for (let n = 0; n < size; n++) {
      const tile = this.maps.values[number * size + n];
      const left = (tile % atlasColumns) * w;
      const top = Math.floor(tile / atlasColumns) * h;
      context.drawImage(this.atlas, left, top, w, h, (n % columns) * w, Math.floor(n / columns) * h, w, h);
    }
  }
}

/** One episode, unpacked. */
class Episode {
  static async load(packed, words, sentences) {
    const episode = new Episode();
    const names = ["views", "wholes", "numbers", "actions", "rewards", "values", "entropy"];
    names.push("probabilities", "actionValues", "ranked", "text", "caption");
    names.push("suggestions", "phrases", "matched", "goalRewards", "changed", "unlocked");
    const arrays = await Promise.all(names.map((name) => unpack(packed[name])));
    names.forEach((name, n) => (episode[name] = arrays[n]));
    episode.length = episode.actions.shape[0];
    episode.retrieved = await unpack(packed.words);
    episode.similarities = await unpack(packed.similarities);
    episode.attention = await Looks.load(packed.attention, packed.seen);
    episode.saliency = await Looks.load(packed.saliency);
    episode.words = words;
    episode.sentences = sentences;
    episode.goals = episode.stepsOf("matched");
    episode.achievements = episode.stepsOf("unlocked");
    episode.returns = [];
    episode.rewards.values.reduce((sum, reward, t) => (episode.returns[t] = sum + reward), 0);
    return episode;
  }

  /** Return how many actions, or numbers of a continuous one, are shown; none where nothing is known of them. */
  get judgedActions() {
    return (this.probabilities ?? this.actionValues ?? this.actions).shape[1] ?? 0;
  }

  /** Return the numbers of a continuous action. */
  actionNumbers(step) {
    const [, count] = this.actions.shape;
    return Array.from(this.actions.values.subarray(step * count, (step + 1) * count));
  }

  /** Return the action of a step in words: its name, or its numbers. */
  actionTaken(step, names) {
    if (this.actions.shape.length === 1) return names[this.actions.values[step]];
    return this.actionNumbers(step)
      .map((number) => number.toFixed(2))
      .join(", ");
  }

  /** Return which action stands in a row: that of its number, or where they are ranked one of the best. */
  actionAt(step, row) {
    return this.ranked ? this.ranked.values[step * this.judgedActions + row] : row;
  }

  /** Return the probability of the action in a row. */
  probability(step, row) {
    return (this.probabilities.values[step * this.judgedActions + row] / 255) ** 2;
  }

  /** Return the numbers that the agent was told at a step. */
  numbersAt(step) {
    const [, count] = this.numbers.shape;
    return Array.from(this.numbers.values.subarray(step * count, (step + 1) * count));
  }

  /** Return the texts of one kind at a step; none where there are none of the kind. */
  textsAt(step, kind = "text") {
    if (!this[kind]) return [];
    const [, count = 1] = this[kind].shape;
    const numbers = Array.from(this[kind].values.subarray(step * count, (step + 1) * count));
    return numbers.map((number) => this.sentences[number]);
  }

  /** Return the texts of a step, without empty ones. */
  saidAt(step, kind) {
    return this.textsAt(step, kind).filter(Boolean);
  }

  /** Return the steps with texts of a kind; null without such a kind. */
  stepsOf(kind) {
    if (!this[kind]) return null;
    return Array.from({ length: this.length }, (_, t) => t).filter((t) => this.saidAt(t, kind).length);
  }

  /** Return the value of the action in a row. */
  actionValue(step, row) {
    return this.actionValues.values[step * this.judgedActions + row];
  }

  /** Return the words of a step, most similar first. */
  wordsAt(step) {
    if (!this.retrieved) return [];
    const [, count] = this.retrieved.shape;
    return Array.from({ length: count }, (_, k) => ({
      word: this.words[this.retrieved.values[step * count + k]],
      similarity: this.similarities.values[step * count + k] / 10000,
    }));
  }
}

/** Which earlier steps every head of every layer looks at, or on which the value depends. */
class Looks {
  /** Unpack the shares of steps that see up to `seen` steps each. */
  static async load(packed, seen = Infinity) {
    const unpacked = await unpack(packed);
    if (!unpacked) return null;
    const looks = new Looks();
    [looks.layers, looks.heads, looks.size] = unpacked.shape;
    looks.quantized = unpacked.values;
    looks.begins = [0];
    for (let t = 0; looks.begins[t] < looks.size; t++) {
      looks.begins.push(looks.begins[t] + Math.min(t + 1, seen));
    }
    return looks;
  }

  /** Return the shares of one head (or the mean of all, head -1), all steps one after the other. */
  shares(layer, head) {
    const chosen = head >= 0 ? [head] : [...Array(this.heads).keys()];
    const mean = new Float32Array(this.size);
    for (const one of chosen) {
      const begin = (layer * this.heads + one) * this.size;
      for (let n = 0; n < this.size; n++) mean[n] += this.quantized[begin + n] ** 2;
    }
    const scale = 1 / (255 * 255 * chosen.length);
    return mean.map((sum) => sum * scale);
  }

  /** Return where the shares of a step begin and which step the first of them is of; maybe none. */
  row(step) {
    const begin = this.begins[step] ?? this.size;
    const count = (this.begins[step + 1] ?? this.size) - begin;
    return { begin, count, first: step + 1 - count };
  }
}
