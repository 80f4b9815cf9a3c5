// The call of the playground as a line for a shell.

/** A text as one word of a POSIX shell. */
export function quoted(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

export function curl(origin: string, body: object): string {
  return `curl -s ${quoted(`${origin}/rate-limit/allow`)} -H 'Content-Type: application/json' -d ${quoted(JSON.stringify(body))}`;
}
