// Work of many kinds for so many seconds: compiled code, the garbage collector, the library's own threads.
// Usage: node busy.js SECONDS
'use strict';
const crypto = require('node:crypto');
const zlib = require('node:zlib');

const end = Date.now() + Number(process.argv[2]) * 1000;

function tree(depth) {
    const node = {};
    for (let i = 0; depth > 0 && i < 4; i++) node[`key-${i}`] = tree(depth - 1);
    return node;
}

function round() {
    const text = JSON.stringify(tree(6), null, 1);
    const numbers = text.match(/key-(\d)/g).map((word) => Number(word.slice(4)));
    numbers.sort((left, right) => left - right);
    zlib.deflate(Buffer.from(text), () => {});
    crypto.createHash('sha256').update(text).digest('hex');
    if (Date.now() < end) setTimeout(round, 2);
    return numbers.reduce((sum, number) => sum + number * number, Object.keys(JSON.parse(text)).length);
}

round();
