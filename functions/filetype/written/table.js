'use strict';

const fs = require('fs');
const path = require('path');

const SEPARATOR = /\s*,\s*/;

function parse(text) {
  const [head, ...lines] = text.trim().split('\n');
  const names = head.split(SEPARATOR);
  return lines.map((line) => {
    const cells = line.split(SEPARATOR);
    return Object.fromEntries(names.map((name, i) => [name, cells[i] ?? '']));
  });
}

function render(rows) {
  if (rows.length === 0) return 'nothing';
  const names = Object.keys(rows[0]);
  const widths = names.map((name) =>
    Math.max(name.length, ...rows.map((row) => String(row[name]).length)),
  );
  const line = (cells) => cells.map((cell, i) => String(cell).padEnd(widths[i])).join('  ');
  return [line(names), ...rows.map((row) => line(names.map((name) => row[name])))].join('\n');
}

if (require.main === module) {
  const file = process.argv[2];
  if (!file) {
    console.error(`usage: ${path.basename(process.argv[1])} FILE.csv`);
    process.exit(2);
  }
  console.log(render(parse(fs.readFileSync(file, 'utf8'))));
}

module.exports = { parse, render };
