// The field above a table that finds its rows.

import { Icon } from './icon.tsx';

export function FindField({
  label,
  placeholder,
  value,
  onFind,
}: {
  label: string;
  placeholder: string;
  value: string;
  onFind: (text: string) => void;
}) {
  return (
    <div class="search-field">
      <Icon name="search" />
      <input
        data-search
        type="search"
        aria-label={label}
        placeholder={placeholder}
        spellcheck={false}
        value={value}
        onInput={(event) => onFind(event.currentTarget.value)}
      />
    </div>
  );
}
