// Where the worker starts that runs the user's regular expressions. It is part of app.js, see build.mjs.

import type { Answer, Question } from './regex.ts';
import { matchRegex } from './search.ts';

const scope = globalThis as unknown as {
  onmessage: ((event: MessageEvent<Question>) => void) | null;
  postMessage(answer: Answer): void;
};
let names: readonly string[] = [];

scope.onmessage = ({ data }) => {
  names = data.names ?? names;
  try {
    scope.postMessage({ id: data.id, found: matchRegex(names, data.pattern) });
  } catch (error) {
    scope.postMessage({ id: data.id, error: error instanceof Error ? error.message : String(error) });
  }
};
