//! Which pool a request goes to, under which path.

use std::borrow::Cow;
use std::collections::BTreeMap;

use http::Method;
use http::header::HOST;
use http::request::Parts;
use http::uri::PathAndQuery;
use tollgate_policy::{MAX_PATTERN_SEGMENTS, canonical_path, normalize_path};
use tollgate_tower::Format;

use crate::ai::Protocol;
use crate::error::GatewayError;
use crate::host::Host;
use crate::options::{GatewayOptions, RouteOptions, Timeouts};

/// So much of a path says which route it is likely to be for.
const MAX_LIKELY_BYTES: usize = 256;

/// What a route looks at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asking<'a> {
    pub(crate) domain: Option<&'a str>,
    /// Normalised.
    pub(crate) path: &'a str,
    pub(crate) method: &'a Method,
    pub(crate) model: Option<&'a str>,
}

/// All routes, in order.
#[derive(Debug)]
pub(crate) struct Routes(Vec<Route>);

impl Routes {
    pub(crate) fn new(
        options: &GatewayOptions,
        pools: &BTreeMap<&str, usize>,
    ) -> Result<Self, GatewayError> {
        let routes = options.routes.iter().map(|route| {
            Route::new(route, options, pools).map_err(|problem| {
                let name = &route.name;
                let route = if name.is_empty() { "(unnamed)" } else { name }.to_owned();
                GatewayError::Route { route, problem }
            })
        });
        let routes: Vec<Route> = routes.collect::<Result<_, _>>()?;
        for (index, route) in routes.iter().enumerate() {
            if routes.iter().take(index).any(|earlier| earlier.name == route.name) {
                let problem = "there are two of this name".to_owned();
                return Err(GatewayError::Route { route: route.name.clone(), problem });
            }
        }
        Ok(Self(routes))
    }

    /// The first that matches.
    pub(crate) fn find(&self, asking: &Asking<'_>) -> Option<&Route> {
        self.0.iter().find(|route| route.matches(asking))
    }

    /// The format of errors for a request that was not routed: its path cannot be read, or no route matches. It is that of
    /// the route for the path as far as it can be read, or of the model API that all routes are for.
    pub(crate) fn likely_format(&self, parts: &Parts) -> Format {
        let host = parts.headers.get(HOST).and_then(|it| it.to_str().ok()).and_then(Host::parse);
        let domain = host.map(|it| it.domain());
        let path = parts.uri.path().split('%').next().unwrap_or("/");
        let path = path.get(..path.len().min(MAX_LIKELY_BYTES)).unwrap_or("/");
        let method = &parts.method;
        let asking = Asking { domain: domain.as_deref(), path, method, model: None };
        if let Some(route) = self.find(&asking) {
            return route.error_format();
        }
        let is_anthropic = parts.headers.contains_key("anthropic-version");
        let wanted = if is_anthropic { Protocol::Anthropic } else { Protocol::OpenAi };
        let protocols: Option<Vec<Protocol>> = self.0.iter().map(|it| it.protocol).collect();
        match protocols.as_deref() {
            None | Some([]) => Format::Json,
            Some(all) if all.contains(&wanted) => wanted.format(),
            Some([first, ..]) => first.format(),
        }
    }

    pub(crate) fn named(&self, name: &str) -> Option<&Route> {
        self.0.iter().find(|route| route.name == name)
    }
}

/// One route, checked.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) name: String,
    /// The pool's place.
    pub(crate) pool: usize,
    pub(crate) timeouts: Timeouts,
    /// The API that its clients speak, where its requests are for models.
    pub(crate) protocol: Option<Protocol>,
    hosts: Vec<HostPattern>,
    paths: Vec<PathPattern>,
    methods: Vec<Method>,
    models: Vec<ModelPattern>,
    /// Both normalised and without a slash at their end; empty for none.
    strip_prefix: String,
    add_prefix: String,
}

impl Route {
    fn new(
        route: &RouteOptions,
        options: &GatewayOptions,
        pools: &BTreeMap<&str, usize>,
    ) -> Result<Self, String> {
        if route.name.is_empty() {
            return Err("it needs a name".to_owned());
        }
        let Some(&pool) = pools.get(route.pool.as_str()) else {
            return Err(format!("there is no pool {:?}", route.pool));
        };
        if !route.models.is_empty() && route.protocol.is_none() && options.model_header.is_none() {
            return Err("routes by model need model_header to be set".to_owned());
        }
        if !route.models.is_empty() && route.protocol.is_some() {
            return Err("it looks for models in bodies: list them under gateway.openai".to_owned());
        }
        Ok(Self {
            name: route.name.clone(),
            protocol: route.protocol,
            pool,
            timeouts: route.timeouts.or(&options.timeouts),
            hosts: route.hosts.iter().map(|it| HostPattern::parse(it)).collect::<Result<_, _>>()?,
            paths: route.paths.iter().map(|it| PathPattern::parse(it)).collect::<Result<_, _>>()?,
            methods: route.methods.clone(),
            models: route.models.iter().map(|it| ModelPattern::parse(it)).collect(),
            strip_prefix: prefix(route.strip_prefix.as_deref())?,
            add_prefix: prefix(route.add_prefix.as_deref())?,
        })
    }

    /// The format of errors that are not about rules.
    pub(crate) fn error_format(&self) -> Format {
        self.protocol.map_or(Format::Json, Protocol::format)
    }

    fn matches(&self, asking: &Asking<'_>) -> bool {
        let any = |empty: bool, found: bool| empty || found;
        any(self.methods.is_empty(), self.methods.contains(asking.method))
            && any(
                self.hosts.is_empty(),
                asking.domain.is_some_and(|it| self.hosts.iter().any(|host| host.matches(it))),
            )
            && any(self.paths.is_empty(), self.paths.iter().any(|path| path.matches(asking.path)))
            && any(
                self.models.is_empty(),
                asking.model.is_some_and(|it| self.models.iter().any(|model| model.matches(it))),
            )
    }

    /// What the upstream is asked for: the canonical path, so that it gets what was decided about,
    /// with prefixes changed and the query as it came. None if that is no path any more.
    pub(crate) fn rewrite(&self, original: &PathAndQuery, path: &str) -> Option<PathAndQuery> {
        if self.strip_prefix.is_empty() && self.add_prefix.is_empty() && original.path() == path {
            return Some(original.clone());
        }
        let rest = self.stripped(path);
        let mut text = String::with_capacity(original.as_str().len() + self.add_prefix.len() + 1);
        text.push_str(&self.add_prefix);
        text.push_str(&rest);
        if let Some(query) = original.query() {
            text.push('?');
            text.push_str(query);
        }
        PathAndQuery::try_from(text).ok()
    }

    /// Where the API may begin in a path, the upstream's own view first: behind the prefix that is stripped, at the
    /// beginning, and behind what the matching pattern states.
    pub(crate) fn bases(&self, path: &str) -> [usize; 3] {
        let is_stripped = path
            .strip_prefix(self.strip_prefix.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let stripped = if is_stripped { self.strip_prefix.len() } else { 0 };
        let pattern = self.paths.iter().find(|pattern| pattern.rest && pattern.matches(path));
        [stripped, 0, pattern.map_or(0, |pattern| pattern.stated_bytes(path))]
    }

    fn stripped<'p>(&self, path: &'p str) -> Cow<'p, str> {
        match path.strip_prefix(self.strip_prefix.as_str()) {
            Some("") => Cow::Borrowed("/"),
            Some(rest) if rest.starts_with('/') => Cow::Borrowed(rest),
            // Not at a segment's end: `/api` is no prefix of `/apis`.
            _ => Cow::Borrowed(path),
        }
    }
}

fn prefix(text: Option<&str>) -> Result<String, String> {
    let Some(text) = text else { return Ok(String::new()) };
    if !text.starts_with('/') || text.contains(['?', '#']) {
        return Err(format!("the prefix {text:?} must start with / and hold no ? or #"));
    }
    let path = canonical_path(text).map_err(|error| format!("the prefix {text:?}: {error}"))?;
    Ok(path.trim_end_matches('/').to_owned())
}

#[derive(Debug)]
enum HostPattern {
    Exactly(String),
    /// With the dot in front.
    Below(String),
}

impl HostPattern {
    fn parse(text: &str) -> Result<Self, String> {
        let (below, name) = match text.strip_prefix("*.") {
            Some(name) => (true, name),
            None => (false, text),
        };
        let host = Host::parse(name).filter(|host| host.name.len() == name.len());
        let Some(host) = host else {
            return Err(format!("{text:?} must be a host, or *. and a host, without a port"));
        };
        let domain = host.domain();
        Ok(if below { Self::Below(format!(".{domain}")) } else { Self::Exactly(domain) })
    }

    fn matches(&self, domain: &str) -> bool {
        match self {
            Self::Exactly(host) => host == domain,
            Self::Below(suffix) => domain.len() > suffix.len() && domain.ends_with(suffix),
        }
    }
}

#[derive(Debug)]
struct ModelPattern {
    text: String,
    is_prefix: bool,
}

impl ModelPattern {
    fn parse(text: &str) -> Self {
        match text.strip_suffix('*') {
            Some(prefix) => Self { text: prefix.to_owned(), is_prefix: true },
            None => Self { text: text.to_owned(), is_prefix: false },
        }
    }

    fn matches(&self, model: &str) -> bool {
        if self.is_prefix { model.starts_with(&self.text) } else { model == self.text }
    }
}

#[derive(Debug)]
struct PathPattern {
    /// None is any segment.
    steps: Vec<Option<String>>,
    /// Whether anything, or nothing, may follow.
    rest: bool,
}

impl PathPattern {
    fn parse(text: &str) -> Result<Self, String> {
        if !text.starts_with('/') || text.contains(['?', '#']) {
            return Err(format!("the path {text:?} must start with / and hold no ? or #"));
        }
        let path = normalize_path(text).map_err(|error| format!("the path {text:?}: {error}"))?;
        let mut steps: Vec<Option<String>> = segments(&path)
            .map(|segment| if segment == "*" { None } else { Some(segment.to_owned()) })
            .collect();
        if steps.len() > MAX_PATTERN_SEGMENTS {
            return Err(format!(
                "{text:?} must not have more than {MAX_PATTERN_SEGMENTS} segments"
            ));
        }
        let rest = steps.last().is_some_and(Option::is_none);
        if rest {
            steps.pop();
        }
        Ok(Self { steps, rest })
    }

    fn matches(&self, path: &str) -> bool {
        let mut segments = segments(path);
        for step in &self.steps {
            let Some(segment) = segments.next() else { return false };
            if step.as_ref().is_some_and(|literal| literal != segment) {
                return false;
            }
        }
        self.rest || segments.next().is_none()
    }

    /// The length of the part of a matching path that the pattern states.
    fn stated_bytes(&self, path: &str) -> usize {
        let stated = segments(path).take(self.steps.len());
        stated.map(|segment| segment.len() + 1).sum::<usize>().min(path.len())
    }
}

/// A trailing slash makes no segment.
fn segments(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|segment| !segment.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_match_by_segment() {
        for (pattern, path, expected) in [
            ("/", "/", true),
            ("/", "/a", false),
            ("/*", "/", true),
            ("/*", "/a/b", true),
            ("/v1/chat", "/v1/chat", true),
            ("/v1/chat", "/v1/chat/", true),
            ("/v1/chat", "/v1/chats", false),
            ("/v1/*", "/v1", true),
            ("/v1/*", "/v1/a/b", true),
            ("/v1/*", "/v2/a", false),
            ("/u/*/posts", "/u/7/posts", true),
            ("/u/*/posts", "/u/posts", false),
            ("/u/*/posts", "/u/7/8/posts", false),
            ("/%61", "/a", true),
        ] {
            let parsed = PathPattern::parse(pattern).unwrap();
            assert_eq!(parsed.matches(path), expected, "{pattern} {path}");
        }
        for pattern in ["", "a", "/a?b", "/%zz", &"/a".repeat(MAX_PATTERN_SEGMENTS + 1)] {
            assert!(PathPattern::parse(pattern).is_err(), "{pattern:?}");
        }
    }

    #[test]
    fn hosts_and_models() {
        let below = HostPattern::parse("*.Example.com").unwrap();
        assert!(below.matches("a.example.com") && below.matches("a.b.example.com"));
        assert!(!below.matches("example.com") && !below.matches("badexample.com"));
        assert!(HostPattern::parse("api.example.com").unwrap().matches("api.example.com"));
        for bad in ["", "*", "*.", "a:80", "a*b", "http://a"] {
            assert!(HostPattern::parse(bad).is_err(), "{bad:?}");
        }
        assert!(ModelPattern::parse("gpt-*").matches("gpt-4"));
        assert!(!ModelPattern::parse("gpt-4").matches("gpt-4o"));
    }

    fn rewritten(strip: Option<&str>, add: Option<&str>, path: &str) -> String {
        let mut options = GatewayOptions::to_upstream("http://a");
        options.routes[0].strip_prefix = strip.map(str::to_owned);
        options.routes[0].add_prefix = add.map(str::to_owned);
        let routes = Routes::new(&options, &BTreeMap::from([("default", 0)])).unwrap();
        let original: PathAndQuery = path.parse().unwrap();
        let normal = canonical_path(original.path()).unwrap();
        routes.named("default").unwrap().rewrite(&original, &normal).unwrap().to_string()
    }

    #[test]
    fn prefixes_are_changed_at_segment_ends() {
        for (strip, add, path, expected) in [
            (None, None, "/a/../b?x=1", "/b?x=1"),
            (Some("/api"), None, "/api/v1?q", "/v1?q"),
            (Some("/api/"), None, "/api", "/"),
            (Some("/api"), None, "/apis", "/apis"),
            (None, Some("/base"), "/a", "/base/a"),
            (Some("/api"), Some("/v2/"), "/api/a/", "/v2/a/"),
            (Some("/api"), None, "/api//x", "/x"),
        ] {
            assert_eq!(rewritten(strip, add, path), expected, "{strip:?} {add:?} {path}");
        }
    }

    #[test]
    fn errors_without_a_route_have_the_format_of_the_api() {
        let format = |kinds: &[Option<Protocol>], path: &str, is_anthropic: bool| {
            let mut options = GatewayOptions::to_upstream("http://a");
            let route = options.routes.pop().unwrap();
            for (nth, protocol) in (1..).zip(kinds) {
                let mut route = route.clone();
                (route.name, route.protocol) = (format!("r{nth}"), *protocol);
                route.paths = vec![format!("/v{nth}/*")];
                options.routes.push(route);
            }
            let routes = Routes::new(&options, &BTreeMap::from([("default", 0)])).unwrap();
            let mut request = http::Request::builder().uri(path);
            if is_anthropic {
                request = request.header("anthropic-version", "2023-06-01");
            }
            routes.likely_format(&request.body(()).unwrap().into_parts().0)
        };
        let (openai, anthropic) = (Some(Protocol::OpenAi), Some(Protocol::Anthropic));
        let (of_openai, of_anthropic) = (Protocol::OpenAi.format(), Protocol::Anthropic.format());
        let long = format!("/v1/{}", "a".repeat(10_000));
        for (kinds, path, is_anthropic, expected) in [
            (&[openai][..], "/v1/%zz", false, of_openai),
            (&[openai], long.as_str(), false, of_openai),
            (&[openai], "/other", false, of_openai),
            (&[anthropic], "/other", false, of_anthropic),
            (&[openai, None], "/v1/chat/%zz", false, of_openai),
            (&[openai, None], "/v2/%zz", false, Format::Json),
            (&[openai, None], "/other", true, Format::Json),
            (&[openai, anthropic], "/other", false, of_openai),
            (&[openai, anthropic], "/other", true, of_anthropic),
            (&[openai, anthropic], "/v2/%", false, of_anthropic),
        ] {
            assert_eq!(format(kinds, path, is_anthropic), expected, "{kinds:?} {path}");
        }
    }
}
