// The module as a function: 64 brightnesses in (0 to 16, rows first), a digit and ten scores out.
export async function loadClassifier(bytes) {
  const { instance } = await WebAssembly.instantiate(bytes, {});
  const { memory, image, scores, classify } = instance.exports;
  return (pixels) => {
    new Float32Array(memory.buffer, image(), 64).set(pixels);
    const digit = classify();
    if (digit < 0) throw new Error(`the model answered with status ${-digit}`);
    return { digit, scores: Array.from(new Float32Array(memory.buffer, scores(), 10)) };
  };
}

// A drawing (RGBA bytes, `size` x `size`, light on dark) as the model knows digits: the drawn box centred in 8 x 8 cells.
export function asImage(rgba, size) {
  let left = size, top = size, right = -1, bottom = -1;
  for (let y = 0; y < size; y++)
    for (let x = 0; x < size; x++)
      if (rgba[4 * (y * size + x)] > 64) {
        left = Math.min(left, x);
        right = Math.max(right, x);
        top = Math.min(top, y);
        bottom = Math.max(bottom, y);
      }
  const pixels = new Float32Array(64);
  if (right < 0) return pixels;
  const side = Math.max(right - left, bottom - top) + 1, cell = side / 8;
  const x0 = (left + right + 1 - side) / 2, y0 = (top + bottom + 1 - side) / 2;
  for (let row = 0; row < 8; row++)
    for (let column = 0; column < 8; column++) {
      let sum = 0, n = 0;
      for (let y = Math.floor(y0 + row * cell); y < y0 + (row + 1) * cell; y++)
        for (let x = Math.floor(x0 + column * cell); x < x0 + (column + 1) * cell; x++) {
          n++;
          if (x >= 0 && y >= 0 && x < size && y < size) sum += rgba[4 * (y * size + x)];
        }
      pixels[8 * row + column] = (16 * sum) / (255 * Math.max(n, 1));
    }
  return pixels;
}
