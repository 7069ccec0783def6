// Small drawings, inline so that nothing is fetched.

const PATHS = {
  flame:
    'M8.3.9c.5 2.5-.65 3.8-1.85 5.1-1.3 1.4-2.7 2.8-2.7 5.1A4.3 4.3 0 0 0 8 15.25a4.3 4.3 0 0 0 4.3-4.25c0-1.65-.65-2.9-1.5-3.95-.15.8-.5 1.45-1.15 1.85.3-2.8-.1-5.75-1.35-8z',
  refresh: 'M13.5 8a5.5 5.5 0 1 1-1.7-4M13.5 1.5V4.5H10.5',
  sun: 'M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3.05 3.05l1.1 1.1M11.85 11.85l1.1 1.1M3.05 12.95l1.1-1.1M11.85 4.15l1.1-1.1',
  moon: 'M13.3 9.7A5.7 5.7 0 0 1 6.3 2.7a5.7 5.7 0 1 0 7 7z',
  help: 'M8 1.5a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13zM6.2 6.3a1.85 1.85 0 1 1 2.7 1.65c-.6.3-.9.7-.9 1.35M8 11.4v.2',
  close: 'M4 4l8 8M12 4l-8 8',
  plus: 'M8 3.5v9M3.5 8h9',
  search: 'M7 2.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9zM10.5 10.5L14 14',
} as const;

export function Icon({ name }: { name: keyof typeof PATHS }) {
  return (
    <svg class={`icon icon-${name}`} viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}
