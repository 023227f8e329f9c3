// Plays commands through the package's own memory tool. Its argument is the package's
// folder; each line that it reads is {"base": folder, "inputs": [...]}, and for each it
// writes a line [{"content": "...", "is_error": false}, ...], in the same order.
import * as fs from 'fs/promises';
import * as path from 'path';
import { createInterface } from 'readline';
import { pathToFileURL } from 'url';

const module = path.join(process.argv[2], 'tools/memory/node.mjs');
const { BetaLocalFilesystemMemoryTool, betaMemoryTool } = await import(pathToFileURL(module).href);

async function folders(dir) {
  const entries = await fs.readdir(dir, { recursive: true, withFileTypes: true });
  return entries.filter((e) => e.isDirectory()).map((e) => path.join(e.parentPath ?? e.path, e.name));
}

// The package puts a file in the place of a link that it edits; ours changes what the link
// leads to. So what the package has written goes there, and the link comes back.
async function edit(tool, base, input) {
  const name = within(base, input);
  const target = await fs.readlink(name);
  const real = await fs.realpath(name);
  const answer = await tool.run(input);
  const text = await fs.readFile(name);
  if ((await fs.lstat(name)).isSymbolicLink()) {
    throw new Error('the package keeps links now');
  }
  await fs.rm(name);
  await fs.symlink(target, name);
  await fs.writeFile(real, text);
  return answer;
}

const within = (base, input) => path.resolve(base, '.' + path.sep + input.path);

async function isLink(name) {
  try {
    return (await fs.lstat(name)).isSymbolicLink() && (await fs.stat(name)).isFile();
  } catch {
    return false;
  }
}

async function play({ base, inputs }) {
  const tool = betaMemoryTool(await BetaLocalFilesystemMemoryTool.init(base));
  const answers = [];
  for (const input of inputs) {
    const makes = input.command === 'create' || input.command === 'rename';
    const before = makes && new Set(await folders(base));
    try {
      const edits = input.command === 'str_replace' || input.command === 'insert';
      const content = edits && (await isLink(within(base, input))) ? await edit(tool, base, input) : await tool.run(input);
      answers.push({ content, is_error: false });
    } catch (err) {
      answers.push({ content: err.message, is_error: true });
      // A command that fails leaves the folders that it made on its way: ours makes none.
      const made = makes ? (await folders(base)).filter((dir) => !before.has(dir)) : [];
      for (const dir of made.sort().reverse()) {
        await fs.rmdir(dir);
      }
    }
  }
  return answers;
}

const playing = [];
for await (const line of createInterface({ input: process.stdin })) {
  playing.push(play(JSON.parse(line)));
  if (playing.length === 8) {
    console.log(JSON.stringify(await playing.shift()));
  }
}
for (const answers of playing) {
  console.log(JSON.stringify(await answers));
}
