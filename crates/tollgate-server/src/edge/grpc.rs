//! The gRPC port: who may call, and who may reset.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response};
use hyper::body::Incoming;
use tollgate_control::{Actor, Role};
use tollgate_engine::Engine;
use tollgate_store::Store;

use crate::admin::Admin;
use crate::config::Config;
use crate::envoy::DescriptorStats;
use crate::grpc::{GrpcOptions, GrpcRoutes, ResetAsked, ResetAuth, Unauthorized, routes};
use crate::http::Api;
use crate::listen::{Answer, Connection};

/// How the digest of a client's certificate reaches the check of its calls. Whatever a client sends
/// under this name is dropped.
const CERTIFICATE: HeaderName = HeaderName::from_static("x-tollgate-client-certificate");

/// Answers the gRPC port.
pub(crate) struct GrpcDoor<S>(GrpcRoutes<S>);

impl<S: Store + 'static> GrpcDoor<S> {
    pub(crate) fn new(
        engine: Arc<Engine<S>>,
        api: Arc<Api<S>>,
        admin: Option<Arc<Admin>>,
        descriptor_stats: Arc<DescriptorStats>,
        config: &Config,
    ) -> Self {
        let reservations = Arc::clone(api.reservations());
        let authorize = move |headers: &HeaderMap| {
            let certificate = headers.get(CERTIFICATE).and_then(digest_of);
            api.authorize(headers, certificate).map_err(|_| Unauthorized)
        };
        Self(routes(GrpcOptions {
            engine,
            reservations,
            authorize: Arc::new(authorize),
            resets: admin.map(|admin| Arc::new(Resets(admin)) as Arc<dyn ResetAuth>),
            headers: config.headers,
            descriptor_stats,
            body_timeout: config.limits.body_timeout,
            stream_idle_timeout: config.limits.idle_timeout,
        }))
    }

    /// From now on health says no, and streams end.
    pub(crate) fn drain(&self) {
        self.0.drain();
    }
}

impl<S: Store + 'static> Answer for GrpcDoor<S> {
    type Body = tonic::body::Body;

    async fn answer(
        self: Arc<Self>,
        mut request: Request<Incoming>,
        connection: Connection,
    ) -> Response<Self::Body> {
        if let Some(digest) = connection.client_certificate {
            request.headers_mut().insert(CERTIFICATE, value_of(&digest));
        } else {
            request.headers_mut().remove(CERTIFICATE);
        }
        self.0.call_from(request, Some(connection.peer.ip())).await
    }

    fn is_endless(_response: &Response<Self::Body>) -> bool {
        // A unary answer ends at once anyway; a stream ends by its own deadline.
        true
    }
}

fn value_of(digest: &[u8; 32]) -> HeaderValue {
    HeaderValue::from_bytes(&digest.map(|byte| [hex(byte >> 4), hex(byte & 15)]).concat())
        .unwrap_or_else(|_| HeaderValue::from_static(""))
}

const fn hex(nibble: u8) -> u8 {
    if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 }
}

fn digest_of(value: &HeaderValue) -> Option<[u8; 32]> {
    let (pairs, rest) = value.as_bytes().as_chunks::<2>();
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let bytes: Option<Vec<u8>> =
        pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect();
    bytes.filter(|_| rest.is_empty())?.try_into().ok()
}

/// Operators may reset, and it is recorded before it is done.
struct Resets(Arc<Admin>);

impl ResetAuth for Resets {
    fn may_reset<'a>(
        &'a self,
        headers: &'a HeaderMap,
        asked: ResetAsked<'a>,
    ) -> Pin<Box<dyn Future<Output = bool> + Send + 'a>> {
        Box::pin(async move {
            let Ok(identity) = self.0.identify(headers, None).await else { return false };
            if !matches!(identity.role, Role::Operator | Role::Admin) {
                return false;
            }
            let actor =
                Actor { name: identity.name, token_id: identity.token_id, ..Actor::default() };
            self.0.note_reset(actor, asked.attributes.client(), asked.rule_ids).await.is_ok()
        })
    }
}
