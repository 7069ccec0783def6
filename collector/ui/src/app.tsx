// The frame of every page: top bar, pages, help, what went wrong.

import { Component, type ComponentChildren } from 'preact';
import { useEffect } from 'preact/hooks';
import { meta } from './explore.ts';
import { handleKey } from './keys.ts';
import { Explore } from './pages/explore.tsx';
import { Locks } from './pages/locks.tsx';
import { Services } from './pages/services.tsx';
import { view } from './state.ts';
import { Help } from './widgets/help.tsx';
import { TopBar } from './widgets/topbar.tsx';

/** An error of the page's own code: said, with what to report, instead of an empty window. */
class Boundary extends Component<{ children: ComponentChildren }, { error: Error | null }> {
  override state: { error: Error | null } = { error: null };

  static override getDerivedStateFromError(error: Error) {
    return { error };
  }

  override render() {
    const { error } = this.state;
    if (!error) return this.props.children;
    const report = `Vesta ${meta.data.peek()?.version ?? 'of unknown version'}\n${location.href}\n${error.stack ?? error.message}`;
    return (
      <main class="empty">
        <h1>The page has a fault</h1>
        <p>Loading it again usually helps. What is stored is not touched.</p>
        <p>
          <button type="button" class="primary" onClick={() => location.reload()}>
            Load again
          </button>{' '}
          <button type="button" onClick={() => navigator.clipboard?.writeText(report)}>
            Copy a report
          </button>
        </p>
        <pre>{report}</pre>
      </main>
    );
  }
}

export function App() {
  useEffect(() => {
    addEventListener('keydown', handleKey);
    return () => removeEventListener('keydown', handleKey);
  }, []);
  const { page } = view.value;
  return (
    <Boundary>
      <TopBar />
      {page === 'explore' ? <Explore /> : page === 'locks' ? <Locks /> : <Services />}
      <Help />
    </Boundary>
  );
}
