// A menu of acts behind a name. The browser closes it on Escape and on a click outside.
import { type KeyboardEvent, type ReactNode, useId, useLayoutEffect, useRef, useState } from 'react';
import { Link } from '../router';
import { Icon, type IconName } from './icons';

export interface MenuItem {
  name: string;
  icon: IconName;
  /** A link, or something to do. */
  href?: string;
  act?: () => void;
  danger?: boolean;
}

/** Distance to the edges of the window. */
const MARGIN = 8;

export function Menu({ label, about, children, items }: { label: string; about?: string; children: ReactNode; items: MenuItem[] }) {
  const id = useId();
  const button = useRef<HTMLButtonElement>(null);
  const box = useRef<HTMLDivElement>(null);
  const [isOpen, setOpen] = useState(false);
  const entries = () => [...(box.current?.querySelectorAll<HTMLElement>('[role="menuitem"]') ?? [])];
  // The entries are there only while it is open: lists have many menus.
  useLayoutEffect(() => {
    if (!isOpen) return;
    const [from, menu] = [button.current?.getBoundingClientRect(), box.current];
    if (!from || !menu) return;
    const { width, height } = menu.getBoundingClientRect();
    const below = from.bottom + 4;
    menu.style.left = `${String(Math.max(MARGIN, Math.min(from.left, window.innerWidth - width - MARGIN)))}px`;
    menu.style.top = `${String(below + height > window.innerHeight - MARGIN ? Math.max(MARGIN, from.top - height - 4) : below)}px`;
    menu.querySelector<HTMLElement>('[role="menuitem"]')?.focus();
  }, [isOpen]);
  const close = () => box.current?.hidePopover();
  const move = (event: KeyboardEvent) => {
    const all = entries();
    const at = all.indexOf(document.activeElement as HTMLElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1 + all.length, Home: 0, End: all.length - 1 }[event.key];
    if (event.key === 'Tab') close();
    if (to === undefined || all.length === 0) return;
    event.preventDefault();
    all[to % all.length]?.focus();
  };
  return (
    <>
      <button ref={button} type="button" className="key" aria-haspopup="menu" aria-expanded={isOpen} aria-label={`Actions for ${label}`} popoverTarget={id}>
        <span className="clip">{children}</span>
        <Icon name="down" size={14} />
      </button>
      <div
        ref={box}
        id={id}
        popover="auto"
        role="menu"
        tabIndex={-1}
        aria-label={label}
        className="menu"
        onKeyDown={move}
        onToggle={(event) => setOpen(event.newState === 'open')}
      >
        {isOpen && (
          <>
            <p className="menu-head" role="presentation">
              <b>{label}</b>
              {about && <small>{about}</small>}
            </p>
            {items.map(({ name, icon, href, act, danger = false }) =>
              href === undefined ? (
                <button key={name} type="button" role="menuitem" tabIndex={-1} className={danger ? 'danger' : ''} onClick={() => { close(); act?.(); }}>
                  <Icon name={icon} size={16} /> {name}
                </button>
              ) : (
                <Link key={name} href={href} role="menuitem" tabIndex={-1} onClick={close}>
                  <Icon name={icon} size={16} /> {name}
                </Link>
              ),
            )}
          </>
        )}
      </div>
    </>
  );
}
