// The switch between the reader's time zone and UTC.
import { useSyncExternalStore } from 'react';
import { currentZone, setZone, subscribeZone, type Zone, zoneName } from '../lib/zone';

export function useZone(): Zone {
  return useSyncExternalStore(subscribeZone, currentZone);
}

export function ZoneSwitch() {
  const now = useZone();
  const next: Zone = now === 'utc' ? 'local' : 'utc';
  return (
    <button type="button" className="zone" onClick={() => setZone(next)} title={`Switch to ${next === 'utc' ? 'UTC' : `local time (${zoneName('local')})`}`}>
      <span>Times in</span>
      <b>{now === 'utc' ? 'UTC' : `${zoneName(now)} (local)`}</b>
    </button>
  );
}
