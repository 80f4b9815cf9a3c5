import { useMutation, useQuery as useAsk, useQueryClient } from '@tanstack/react-query';
import { type SyntheticEvent, useEffect, useRef, useState } from 'react';
import { session, sso } from '../api/client';
import { Logo } from '../ui/icons';
import { Button, Field, sentence } from '../ui/parts';
import { ThemeSwitch } from '../ui/theme';

/** Where the provider of the session that was signed out signs out. */
export const SIGNED_OUT_OF = ['signed-out-of'];

export function SignIn({ note }: { note?: string }) {
  const queries = useQueryClient();
  const [token, setToken] = useState('');
  const input = useRef<HTMLInputElement>(null);
  // Without an answer there is the token alone, as without single sign-on.
  const options = useAsk({ queryKey: ['sign-in-options'], queryFn: () => sso.options(), staleTime: Infinity, retry: 1 });
  const provider = options.data?.is_configured === true ? options.data.provider : null;
  const providerOut = queries.getQueryData<string | null>(SIGNED_OUT_OF) ?? null;
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
        {providerOut !== null && (
          <p className="about" role="status">
            You are signed out of Tollgate. <a href={providerOut}>Sign out of the provider, too</a>
          </p>
        )}
        {provider !== null && (
          <>
            <Button kind="primary" onClick={() => sso.start()}>Continue with single sign-on</Button>
            <p className="or"><span>or with a token</span></p>
          </>
        )}
        {provider === null && <p className="about">With an admin token. The first start of the server has printed one.</p>}
        {/* For password managers, which want a name to keep a secret under. */}
        <input className="sr-only" type="text" name="username" autoComplete="username" value="tollgate" readOnly tabIndex={-1} aria-hidden="true" />
        <Field label="Admin token" fault={wrong}>
          {(props) => (
            <input {...props} ref={input} type="password" autoComplete="current-password" spellCheck={false} placeholder="tgt_…" value={token} onChange={(event) => setToken(event.target.value)} />
          )}
        </Field>
        <Button type="submit" kind={provider === null ? 'primary' : 'plain'} busy={signIn.isPending} disabled={token.trim() === ''}>
          Sign in
        </Button>
        <p className="note">The token is kept in a cookie that no script can read, until you sign out or close the browser.</p>
      </form>
    </main>
  );
}
