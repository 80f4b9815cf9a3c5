//! The list of models.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode};
use tollgate_tower::{Decide, EdgeRequest, Rejection};

use super::paths::ListPath;
use super::protocol::Protocol;
use crate::body::GatewayBody;
use crate::respond::{own, rejected};
use crate::routes::Route;
use crate::worker::Worker;

/// What a request asks about models, if it does.
pub(crate) fn list_of<'a>(
    protocol: Protocol,
    parts: &Parts,
    asked: &'a EdgeRequest,
    route: &Route,
) -> Option<ListPath<'a>> {
    let path = asked.endpoint.as_deref().unwrap_or("/");
    let is_get = parts.method == Method::GET;
    ListPath::read(protocol, path, route.bases(path)).filter(|_| is_get)
}

impl<D: Decide> Worker<D> {
    /// The models that are listed, where that is answered here.
    pub(crate) fn ai_list(
        &self,
        protocol: Protocol,
        list: ListPath<'_>,
    ) -> Option<Response<GatewayBody>> {
        let ai = &self.gateway.ai;
        if !ai.options.lists_models {
            return None;
        }
        let body = match list {
            ListPath::All => protocol.list(ai.models.names()),
            ListPath::One(name) => match ai.models.names().find(|known| *known == name) {
                Some(name) => protocol.model(name),
                None => return Some(rejected(unknown_model(name), protocol.format())),
            },
        };
        let mut response = Response::new(Bytes::from(body.to_string()));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Some(own(response))
    }
}

pub(super) fn unknown_model(name: &str) -> Rejection {
    let shown: String = name.chars().take(100).collect();
    let message = format!("The model `{shown}` does not exist or you do not have access to it.");
    Rejection::new(StatusCode::NOT_FOUND, "MODEL_NOT_FOUND", message).param("model")
}
