import { useMutation, useQueryClient } from '@tanstack/react-query';
import { type SyntheticEvent, useEffect, useRef, useState } from 'react';
import { session } from '../api/client';
import { Logo } from '../ui/icons';
import { Button, Field, sentence } from '../ui/parts';
import { ThemeSwitch } from '../ui/theme';

export function SignIn({ note }: { note?: string }) {
  const queries = useQueryClient();
  const [token, setToken] = useState('');
  const input = useRef<HTMLInputElement>(null);
  const signIn = useMutation({
    mutationFn: (given: string) => session.signIn(given),
    onSuccess: (identity) => queries.setQueryData(['session'], identity),
    onError: () => input.current?.select(),
  });
  useEffect(() => {
    document.title = 'Sign in · Tollgate';
    input.current?.focus();
  }, []);
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    if (token.trim() !== '') signIn.mutate(token.trim());
  };
  const wrong = signIn.error ? sentence(signIn.error).replace(/^an admin token is needed.*$/, 'This token is not known, or has ended.') : note;
  return (
    <main className="alone">
      <form className="sign-in card" onSubmit={submit}>
        <div className="sign-in-head">
          <Logo size={40} />
          <ThemeSwitch />
        </div>
        <h1>Sign in to Tollgate</h1>
        <p className="about">With an admin token. The first start of the server has printed one.</p>
        {/* For password managers, which want a name to keep a secret under. */}
        <input className="sr-only" type="text" name="username" autoComplete="username" value="tollgate" readOnly tabIndex={-1} aria-hidden="true" />
        <Field label="Admin token" fault={wrong}>
          {(props) => (
            <input {...props} ref={input} type="password" autoComplete="current-password" spellCheck={false} placeholder="tgt_…" value={token} onChange={(event) => setToken(event.target.value)} />
          )}
        </Field>
        <Button type="submit" kind="primary" busy={signIn.isPending} disabled={token.trim() === ''}>
          Sign in
        </Button>
        <p className="note">The token is kept in a cookie that no script can read, until you sign out or close the browser.</p>
      </form>
    </main>
  );
}
