// The difference of two texts, line by line: the longest common part stays, the rest came or went.

export interface Line {
  kind: 'same' | 'gone' | 'new';
  text: string;
}

/** Above this many lines the table of the comparison would be too large; then all of it came and went. */
const MAX_LINES = 2_000;

export function diff(before: string, after: string): Line[] {
  const [a, b] = [before, after].map((text) => (text === '' ? [] : text.split('\n'))) as [string[], string[]];
  if (a.length > MAX_LINES || b.length > MAX_LINES) {
    return [...a.map((text): Line => ({ kind: 'gone', text })), ...b.map((text): Line => ({ kind: 'new', text }))];
  }
  const width = b.length + 1;
  const common = new Uint16Array((a.length + 1) * width);
  const at = (i: number, j: number) => common[i * width + j] ?? 0;
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      common[i * width + j] = a[i] === b[j] ? at(i + 1, j + 1) + 1 : Math.max(at(i + 1, j), at(i, j + 1));
    }
  }
  const lines: Line[] = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    const [left, right] = [a[i], b[j]];
    if (left !== undefined && left === right) {
      lines.push({ kind: 'same', text: left });
      i += 1;
      j += 1;
    } else if (left !== undefined && (right === undefined || at(i + 1, j) >= at(i, j + 1))) {
      lines.push({ kind: 'gone', text: left });
      i += 1;
    } else if (right !== undefined) {
      lines.push({ kind: 'new', text: right });
      j += 1;
    }
  }
  return lines;
}

export function isSame(lines: Line[]): boolean {
  return lines.every((line) => line.kind === 'same');
}
