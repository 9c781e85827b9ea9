// The pictures of the gallery: unpacked when they are asked for, and drawn.
"use strict";
const pictures = (() => {
  const parsed = new Map();
  const read = (id) => {
    if (!parsed.has(id)) parsed.set(id, JSON.parse(document.getElementById(id).textContent));
    return parsed.get(id);
  };
  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

  const sheets = new Map();
  const decode = (key, text) => {
    if (!sheets.has(key)) {
      const image = new Image();
      image.src = `data:image/png;base64,${text}`;
      sheets.set(key, image.decode().then(() => image));
    }
    return sheets.get(key);
  };

  const scratch = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const tile = (sheet, common, place) => {
    const { width, height, columns } = common;
    scratch.canvas.width = width;
    scratch.canvas.height = height;
    const left = (place % columns) * width, top = Math.floor(place / columns) * height;
    scratch.drawImage(sheet, left, top, width, height, 0, 0, width, height);
    return scratch.getImageData(0, 0, width, height);
  };

  // One attack with one radius on one model.
  const open = async (model, pair) => {
    const common = read(`common-${model}`), shots = read(`shots-${model}-${pair}`);
    const [clean, change] = await Promise.all([
      decode(`common-${model}`, common.clean), decode(`shots-${model}-${pair}`, shots.sheet),
    ]);
    if (!shots.starts) {
      const index = shots.wide ? Uint32Array : Uint16Array;
      shots.counts = bytes(shots.counts);
      shots.source = new index(bytes(shots.source).buffer);
      shots.target = new index(bytes(shots.target).buffer);
      shots.weight = bytes(shots.weight);
      shots.starts = new Uint32Array(shots.counts.length);
      for (let i = 1; i < shots.counts.length; i++) shots.starts[i] = shots.starts[i - 1] + shots.counts[i - 1];
    }
    return { common, shots, clean, change };
  };

  const canvas = (data, words, kind) => {
    const element = document.createElement("canvas");
    element.width = data.width;
    element.height = data.height;
    element.className = kind + (data.width > 64 ? "" : " coarse");
    element.setAttribute("role", "img");
    element.setAttribute("aria-label", words);
    element.getContext("2d").putImageData(data, 0, 0);
    return element;
  };

  const clean = (set, place) => canvas(tile(set.clean, set.common, place), "clean", "image");

  const adversarial = (set, place) => {
    const data = tile(set.clean, set.common, place), change = tile(set.change, set.common, place).data;
    const unit = 255 * set.shots.scale[place] / set.common.steps;
    for (let i = 0; i < change.length; i++) if (i % 4 !== 3) data.data[i] += (change[i] - 128) * unit;
    return canvas(data, "adversarial", "image");
  };

  // Red where mass arrived, blue where it left; clear where nothing moved.
  const moved = (set, place) => {
    const data = tile(set.change, set.common, place), pixels = data.data;
    let most = 1;
    for (let i = 0; i < pixels.length; i += 4) most = Math.max(most, Math.abs(pixels[i] + pixels[i + 1] + pixels[i + 2] - 384));
    for (let i = 0; i < pixels.length; i += 4) {
      const share = (pixels[i] + pixels[i + 1] + pixels[i + 2] - 384) / most;
      pixels.set(share > 0 ? [239, 62, 62] : [52, 128, 246], i);
      pixels[i + 3] = 255 * Math.sqrt(Math.abs(share));
    }
    return canvas(data, "what moved", "change");
  };

  const svg = (name, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  };

  // The clean image, darkened, with the largest moves as arrows; the more mass, the wider and the brighter. In a large
  // image nobody would see a move of two pixels, so there they are drawn longer.
  const transport = (stage, set, place) => {
    const { full_width: width, full_height: height } = set.common, { shots } = set;
    const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "arrows", "aria-hidden": "true" });
    const first = shots.starts[place], stretch = Math.max(1, Math.round(Math.max(width, height) / 64));
    for (let i = first; i < first + shots.counts[place]; i++) {
      const weight = shots.weight[i] / 255, from = shots.source[i], to = shots.target[i];
      const x = from % width + 0.5, y = Math.floor(from / width) + 0.5;
      const across = to % width + 0.5 - x, down = Math.floor(to / width) + 0.5 - y, distance = Math.hypot(across, down);
      const [u, v] = [across / distance, down / distance], length = stretch * distance;
      const thick = (0.05 + 0.13 * weight) * stretch, broad = (0.18 + 0.26 * weight) * stretch;
      const neck = Math.max(0.35 * length, length - 1.9 * broad);
      const at = (along, aside) => `${(x + u * along - v * aside).toFixed(2)} ${(y + v * along + u * aside).toFixed(2)}`;
      const corners = [[0, thick], [neck, thick], [neck, broad], [length, 0], [neck, -broad], [neck, -thick], [0, -thick]];
      drawing.append(svg("path", { d: `M${corners.map((corner) => at(...corner)).join("L")}z`, opacity: 0.35 + 0.65 * weight, "stroke-width": 0.05 * stretch }));
    }
    stage.replaceChildren(clean(set, place), drawing);
    if (shots.planned[place] === "0") return "no transport plan was stored";
    const count = shots.counts[place];
    if (!count) return "nothing moved";
    return `${count === 1 ? "the only move" : `the ${count} largest moves`}${stretch > 1 ? `, drawn ${stretch}× as long` : ""}`;
  };

  return { read, open, clean, adversarial, moved, transport };
})();
