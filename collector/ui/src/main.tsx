// Where the page starts; the same file serves as the worker that runs the user's regular expressions.

import { render } from 'preact';
import { serveRegex } from './regex.ts';

if (typeof document === 'undefined') {
  serveRegex(globalThis as unknown as Parameters<typeof serveRegex>[0]);
} else {
  // The page's modules read the document as they load, so the worker must not load them.
  const root = document.getElementById('app');
  if (root) import('./app.tsx').then(({ App }) => render(<App />, root));
}
