// Writes xtermjs.json: what xterm.js shows for each of cases.json, and for the
// random streams of random.json. In an empty directory outside the repository:
//   npm install @xterm/headless
//   NODE_PATH=$PWD/node_modules node REPO/terminal/screen/testdata/xtermjs.js
const { Terminal } = require('@xterm/headless');
const fs = require('fs');
const path = require('path');
const file = (name) => path.join(__dirname, name);
async function show(c) {
  const t = new Terminal({ cols: c.cols, rows: c.rows, scrollback: 0, logLevel: 'off', allowProposedApi: true });
  await new Promise((done) => t.write(c.stream, done));
  const b = t.buffer.active;
  const lines = [];
  for (let y = 0; y < c.rows; y++) lines.push(b.getLine(b.baseY + y).translateToString(true).replace(/ +$/, ''));
  t.dispose();
  return { ...c, lines, x: b.cursorX, y: b.cursorY };
}
(async () => {
  const out = [];
  for (const name of ['cases.json', 'random.json']) {
    for (const c of JSON.parse(fs.readFileSync(file(name)))) {
      if (!(c.skip && 'xtermjs' in c.skip)) out.push(await show(c));
    }
  }
  fs.writeFileSync(file('xtermjs.json'), '[\n' + out.map((c) => JSON.stringify(c)).join(',\n') + '\n]\n');
})();
