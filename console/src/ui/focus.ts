// A field that a link asked for: it gets the focus once, after the page has taken its own.
import { useEffect } from 'react';

export function useFocused(part: string | null) {
  useEffect(() => {
    if (part === null) return;
    const frame = requestAnimationFrame(() => {
      const field = document.querySelector<HTMLInputElement>(`[data-part="${CSS.escape(part)}"]`);
      field?.focus();
      field?.select();
      field?.scrollIntoView({ block: 'center' });
    });
    return () => cancelAnimationFrame(frame);
  }, [part]);
}
