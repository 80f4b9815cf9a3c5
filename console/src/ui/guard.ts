// Asks before what was typed is left behind.
import { useEffect } from 'react';
import { guardLeaving } from '../router';

export function useGuard(isChanged: boolean, question: string) {
  useEffect(() => {
    guardLeaving(isChanged ? () => window.confirm(question) : null);
    return () => guardLeaving(null);
  }, [isChanged, question]);
}
