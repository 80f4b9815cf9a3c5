// A real OpenID provider (npm oidc-provider) on a free port of this host, for tests. Its first line on standard output
// says where it is. People sign in by their name alone; PEOPLE lists who they are.
//
// A test can have the next ID token changed, as an attacker or a broken provider would: POST /test/next with one of the
// names in CHANGES.
import { createHmac, createPrivateKey, createPublicKey, generateKeyPairSync } from 'node:crypto';
import { createServer } from 'node:http';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const tools = process.env.TOLLGATE_TEST_TOOLS ?? join(import.meta.dirname, '../../target/test-tools');
const modules = join(tools, 'oidc-provider/node_modules');
const { default: Provider } = await import(pathToFileURL(join(modules, 'oidc-provider/lib/index.js')).href);
const { SignJWT } = await import(pathToFileURL(join(modules, 'jose/dist/node/esm/index.js')).href);

const CLIENT_ID = 'tollgate';
const CLIENT_SECRET = process.env.CLIENT_SECRET ?? 'a-secret-of-the-tests-0123456789';
const CALLBACK = 'http://127.0.0.1/admin/api/v1/oidc/callback';

const PEOPLE = {
  ada: { groups: ['tollgate-admins', 'everyone'] },
  ann: { groups: ['sre', 'everyone'] },
  vic: { groups: ['everyone'] },
  tess: { groups: ['acme-admins'] },
  // The tenant comes from a claim.
  tom: { job: 'account-manager', organisation: 'umbrella' },
  // A tenant that would be more than one.
  eve: { job: 'account-manager', organisation: 'acme:all' },
  nora: { groups: ['cooks'] },
  // One group as text, and an address that the provider has not verified.
  otto: { groups: 'sre', email: 'ada@example.com', email_verified: false },
};

/** The numbers of a key as PKCS #1 has them (RFC 8017, A.1.2), after the version. */
const numbersOf = (der) => {
  const lengthAt = (at) => (der[at] < 0x80 ? [der[at], at + 1] : [der.readUIntBE(at + 1, der[at] & 0x7f), at + 1 + (der[at] & 0x7f)]);
  const numbers = [];
  for (let [, at] = lengthAt(1); at < der.length; ) {
    const [length, start] = lengthAt(at + 1);
    at = start + length;
    numbers.push(der.subarray(der[start] === 0 ? start + 1 : start, at).toString('base64url'));
  }
  return numbers.slice(1);
};

const pair = (kid) => {
  // Its JWK is made here: Node 20 now and then hangs for ever where it exports one.
  const { privateKey: key } = generateKeyPairSync('rsa', {
    modulusLength: 2048,
    publicKeyEncoding: { type: 'pkcs1', format: 'der' },
    privateKeyEncoding: { type: 'pkcs1', format: 'der' },
  });
  const from = { key, type: 'pkcs1', format: 'der' };
  const [n, e, d, p, q, dp, dq, qi] = numbersOf(key);
  const shared = { kty: 'RSA', kid, use: 'sig', alg: 'RS256', n, e };
  const publicKey = createPublicKey({ key: shared, format: 'jwk' });
  return { kid, privateKey: createPrivateKey(from), publicKey, secret: { ...shared, d, p, q, dp, dq, qi }, shared };
};
const first = pair('first');
const second = pair('second');
const stranger = pair('first');

const part = (value) => Buffer.from(JSON.stringify(value)).toString('base64url');
const claimsOf = (token) => JSON.parse(Buffer.from(token.split('.')[1], 'base64url').toString());
const sign = (claims, { privateKey, kid } = first) => new SignJWT(claims).setProtectedHeader({ alg: 'RS256', kid }).sign(privateKey);
const withHmac = (claims, key, kid = first.kid) => {
  const text = `${part({ alg: 'HS256', kid })}.${part(claims)}`;
  return `${text}.${createHmac('sha256', key).update(text).digest('base64url')}`;
};
const admin = (claims) => ({ ...claims, groups: ['tollgate-admins'] });

let isRotated = false;
const CHANGES = {
  payload: (token) => token.split('.').with(1, part(admin(claimsOf(token)))).join('.'),
  unsigned: (token) => `${part({ alg: 'none', kid: first.kid })}.${part(admin(claimsOf(token)))}.`,
  client_secret: (token) => withHmac(admin(claimsOf(token)), CLIENT_SECRET),
  public_key: (token) => withHmac(admin(claimsOf(token)), first.publicKey.export({ format: 'pem', type: 'spki' })),
  stranger: (token) => sign(admin(claimsOf(token)), stranger),
  unknown_key: (token) => sign(admin(claimsOf(token)), { ...stranger, kid: 'nobody' }),
  issuer: (token) => sign({ ...claimsOf(token), iss: 'https://login.example' }),
  audience: (token) => sign({ ...claimsOf(token), aud: 'another-client' }),
  party: (token) => sign({ ...claimsOf(token), aud: [CLIENT_ID, 'another-client'] }),
  other_party: (token) => sign({ ...claimsOf(token), azp: 'another-client' }),
  nonce: (token) => sign({ ...claimsOf(token), nonce: 'of another sign-in' }),
  no_nonce: (token) => sign({ ...claimsOf(token), nonce: undefined }),
  expired: (token) => sign({ ...claimsOf(token), exp: Math.floor(Date.now() / 1000) - 3600 }),
  endless: (token) => sign({ ...claimsOf(token), exp: undefined }),
  nobody: (token) => sign({ ...claimsOf(token), sub: undefined }),
  // No attack: the provider has a new key.
  rotated: (token) => {
    isRotated = true;
    return sign(claimsOf(token), second);
  },
};
let next = null;

const server = createServer();
await new Promise((resolve) => server.listen(Number(process.env.PORT ?? 0), '127.0.0.1', resolve));
const issuer = `http://127.0.0.1:${server.address().port}`;

// The provider's own page loads a font from another host.
const logoutSource = (ctx, form) => {
  ctx.body = `<!doctype html><html lang="en"><title>Provider</title><h1>Sign out of the provider</h1>${form}`;
};

const provider = new Provider(issuer, {
  clients: [{
    client_id: CLIENT_ID,
    client_secret: CLIENT_SECRET,
    redirect_uris: [CALLBACK],
    grant_types: ['authorization_code'],
    response_types: ['code'],
  }],
  jwks: { keys: [first.secret] },
  cookies: { keys: ['a key of the tests'] },
  claims: { openid: ['sub'], email: ['email', 'email_verified'], groups: ['groups', 'job', 'organisation'] },
  conformIdTokenClaims: false,
  pkce: { methods: ['S256'], required: () => true },
  features: { devInteractions: { enabled: false }, rpInitiatedLogout: { enabled: true, logoutSource } },
  interactions: { url: (ctx, { uid }) => `/interaction/${uid}` },
  findAccount: (ctx, id) => PEOPLE[id] && { accountId: id, claims: () => ({ sub: id, email: `${id}@example.com`, email_verified: true, ...PEOPLE[id] }) },
  // Nobody is asked whether this client may know them.
  loadExistingGrant: async (ctx) => {
    const grant = new ctx.oidc.provider.Grant({ clientId: ctx.oidc.client.clientId, accountId: ctx.oidc.session.accountId });
    grant.addOIDCScope('openid email groups');
    await grant.save();
    return grant;
  },
});
// Servers of tests listen on free ports: every port of this host is accepted.
provider.Client.prototype.redirectUriAllowed = (uri) => uri.replace(/^(http:\/\/127\.0\.0\.1):\d+\//, '$1/') === CALLBACK;
provider.use(async (ctx, go) => {
  await go();
  if (ctx.path === '/token' && ctx.body?.id_token && next !== null) {
    ctx.body.id_token = await CHANGES[next](ctx.body.id_token);
    next = null;
  }
  if (ctx.path === '/jwks' && isRotated) ctx.body = { keys: [second.shared] };
});

const read = async (request) => {
  let text = '';
  for await (const piece of request) text += piece;
  return text;
};
const page = (uid) => `<!doctype html><html lang="en"><title>Provider</title><h1>Provider of the tests</h1>
<form method="post" action="/interaction/${uid}"><label>Name <input name="login" autofocus></label>
<button>Continue</button></form>`;
const callback = provider.callback();
server.on('request', (request, response) => {
  const answer = async () => {
    if (request.method === 'POST' && request.url === '/test/next') {
      const name = await read(request);
      next = name in CHANGES ? name : null;
      response.writeHead(next === null ? 400 : 204).end();
      return;
    }
    const uid = /^\/interaction\/([\w-]+)$/.exec(request.url)?.[1];
    if (uid === undefined) return void callback(request, response);
    if (request.method === 'GET') {
      response.writeHead(200, { 'content-type': 'text/html' }).end(page(uid));
      return;
    }
    const login = new URLSearchParams(await read(request)).get('login') ?? '';
    const result = login in PEOPLE ? { login: { accountId: login } } : { error: 'access_denied' };
    await provider.interactionFinished(request, response, result, { mergeWithLastSubmission: false });
  };
  answer().catch((error) => {
    console.error(error);
    response.destroy();
  });
});
console.log(`listening ${issuer}`);
