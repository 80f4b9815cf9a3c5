// Icons, drawn here so that nothing is fetched.
const PATHS = {
  overview: 'M3 13h4l3-8 4 14 3-6h4',
  playground: 'M7 4v16l13-8z',
  rules: 'M5 6h14M5 12h14M5 18h9',
  clients: 'M12 12a4 4 0 1 0 0-8 4 4 0 0 0 0 8zm-8 9a8 8 0 0 1 16 0',
  lists: 'M12 3l8 3v6c0 5-3.5 8-8 9-4.5-1-8-4-8-9V6zM9 12l2 2 4-4',
  tiers: 'M12 3l9 5-9 5-9-5zm-9 9l9 5 9-5M3 16l9 5 9-5',
  audit: 'M6 3h9l4 4v14H6zM9 12h7M9 16h7M9 8h3',
  queue: 'M4 12h10M10 8l4 4-4 4M18 5v14',
  nodes: 'M4 5h16v5H4zm0 9h16v5H4zM8 7.5h.01M8 16.5h.01',
  tokens: 'M15 9a5 5 0 1 0-4.6 5L12 15.500h2V18h2.500v2.500H20V17l-5.300-5.300A5 5 0 0 0 15 9zM9 8h.01',
  keys: 'M8 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM12 12h9v4M17 12v3',
  spend: 'M12 3v18M16.500 7.500c-.8-1.400-2.400-2-4.500-2-2.500 0-4.500 1-4.500 3.200 0 4.600 9.500 2 9.500 6.600 0 2.200-2 3.200-5 3.200-2.300 0-4.200-.8-5-2.500',
  edit: 'M4 20h4L19 9l-4-4L4 16zM13.500 6.500l4 4',
  menu: 'M4 7h16M4 12h16M4 17h16',
  close: 'M6 6l12 12M18 6L6 18',
  plus: 'M12 5v14M5 12h14',
  check: 'M5 12.500l4.500 4.500L19 7.500',
  copy: 'M9 9h11v11H9zM5 15H4V4h11v1',
  warn: 'M12 4l9 16H3zM12 10v4M12 17h.01',
  search: 'M10.500 17a6.500 6.500 0 1 0 0-13 6.500 6.500 0 0 0 0 13zM20 20l-4.800-4.800',
  sun: 'M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM12 2.500v2M12 19.500v2M2.500 12h2M19.500 12h2M5.300 5.300l1.400 1.400M17.300 17.300l1.400 1.400M18.700 5.300l-1.400 1.400M6.700 17.300l-1.400 1.400',
  moon: 'M20 14.500A8.500 8.500 0 0 1 9.500 4 8.500 8.500 0 1 0 20 14.500z',
  system: 'M4 5h16v11H4zM9 20h6M12 16v4',
  out: 'M14 4h5v16h-5M4 12h11M11 8l4 4-4 4',
  down: 'M6 9l6 6 6-6',
  right: 'M9 6l6 6-6 6',
  left: 'M15 6l-6 6 6 6',
  download: 'M12 4v11M7 11l5 5 5-5M5 20h14',
  reset: 'M5 5v5h5M5.500 10A7.500 7.500 0 1 1 4.500 14',
  trash: 'M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13',
  bolt: 'M13 3L5 14h6l-1 7 8-11h-6z',
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, size = 18 }: { name: IconName; size?: number }) {
  return (
    <svg
      className="icon"
      width={size}
      height={size}
      viewBox="0 0 24 24"
      fill="none"
      stroke="currentColor"
      strokeWidth="1.75"
      strokeLinecap="round"
      strokeLinejoin="round"
      aria-hidden="true"
      focusable="false"
    >
      <path d={PATHS[name]} />
    </svg>
  );
}

export function Logo({ size = 26 }: { size?: number }) {
  return (
    <svg width={size} height={size} viewBox="0 0 32 32" aria-hidden="true" focusable="false">
      <rect width="32" height="32" rx="7" fill="#0f766e" />
      <path d="M8 25V9m0 4h16" stroke="#fff" strokeWidth="3" strokeLinecap="round" fill="none" />
      <circle cx="8" cy="7.500" r="2.500" fill="#fff" />
      <path d="M14 13h3m4 0h3" stroke="#0f766e" strokeWidth="3" />
    </svg>
  );
}
