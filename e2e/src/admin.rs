//! Talks to the admin API.

use std::net::SocketAddr;

use serde_json::Value;

use crate::{Client, Response};

/// What every admin path begins with.
pub const ADMIN: &str = "/admin/api/v1/rate-limits/";

/// The first admin token of servers that tests start.
pub const ADMIN_TOKEN: &str = "tgt_0123456789abcdef0123456789abcdef";

/// A connection with a token.
pub struct Admin {
    client: Client,
    token: String,
}

impl Admin {
    /// With the token of tests.
    pub fn connect(addr: SocketAddr) -> Self {
        Self::with_token(addr, ADMIN_TOKEN)
    }

    /// With another one.
    pub fn with_token(addr: SocketAddr, token: &str) -> Self {
        let client = Client::connect(addr).expect("a connection");
        Self { client, token: token.to_owned() }
    }

    /// Any call, with further headers.
    pub fn call(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Response {
        let bearer = format!("Bearer {}", self.token);
        let mut all = vec![("authorization", bearer.as_str())];
        all.extend_from_slice(headers);
        let body = body.map(ToString::to_string).unwrap_or_default();
        self.client.request(method, &format!("{ADMIN}{path}"), &all, body.as_bytes())
    }

    /// A GET that must succeed.
    pub fn get(&mut self, path: &str) -> Value {
        let response = self.call("GET", path, &[], None);
        assert_eq!(response.status, 200, "GET {path}: {}", response.text());
        response.json()
    }

    /// A POST; its status and its answer.
    pub fn post(&mut self, path: &str, body: &Value) -> (u16, Value) {
        let response = self.call("POST", path, &[], Some(body));
        (response.status, response.json())
    }

    /// A POST that must succeed.
    pub fn put(&mut self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.post(path, body);
        assert!(status == 200 || status == 201, "POST {path}: {status} {answer}");
        answer
    }

    /// A DELETE; its status and its answer.
    pub fn delete(&mut self, path: &str) -> (u16, Value) {
        let response = self.call("DELETE", path, &[], None);
        (response.status, response.json())
    }

    /// A token of this role.
    pub fn token(&mut self, role: &str, tenant: Option<&str>) -> (String, String) {
        let body = serde_json::json!({ "name": role, "role": role, "tenant_id": tenant });
        let answer = self.put("tokens", &body);
        let text = |name: &str| answer[name].as_str().expect("a string").to_owned();
        (text("token_id"), text("token"))
    }
}
