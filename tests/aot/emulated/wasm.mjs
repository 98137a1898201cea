// A module in node: requests from standard input, answers to standard output.
import fs from "node:fs";

const { instance } = await WebAssembly.instantiate(fs.readFileSync(process.argv[2]), {});
const { memory, tw_request, tw_answer, tw_answer_all } = instance.exports;
const request = fs.readFileSync(0);
new Uint8Array(memory.buffer).set(request, tw_request.value);
const n = tw_answer_all(request.length);
const answer = Buffer.from(memory.buffer, tw_answer.value, n);
for (let at = 0; at < n; ) at += fs.writeSync(1, answer, at);
