// A chain of functions for `node --perf-basic-prof`.
// Usage: chain.js SECONDS; prints the CPU nanoseconds of the process when done.
'use strict';

function leafOfNode(rounds) {
  let sum = 0;
  for (let i = 0; i < rounds; i++) sum += Math.sqrt(i) * 3;
  return sum;
}

function middleOfNode(rounds) {
  return leafOfNode(rounds) + 1;
}

function outerOfNode(milliseconds) {
  const end = Date.now() + milliseconds;
  let sum = 0;
  while (Date.now() < end) sum += middleOfNode(20000);
  return sum;
}

outerOfNode(Number(process.argv[2]) * 1000);
const { user, system } = process.cpuUsage();
console.log((user + system) * 1000);
