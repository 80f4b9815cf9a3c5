//! Asks a rule file: the server's own API on an engine in memory, without a socket.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use http_body_util::{BodyExt as _, Full};
use tollgate_engine::{Engine, MissingKey, SystemClock};
use tollgate_server::config::{Config, Overrides};
use tollgate_server::http::Api;
use tollgate_store::MemoryStore;

use crate::client::Answer;
use crate::commands::rules;
use crate::failure::Failure;

/// Room for the counters of one request.
const MAX_COUNTERS: usize = 1_024;

pub(super) fn ask(file: &Path, path: &str, body: String) -> Result<Answer, Failure> {
    let (_, set) = rules::read(file)?;
    let set =
        set.map_err(|problems| Failure::Usage(anyhow::anyhow!("the rules are wrong\n{problems}")))?;
    // The defaults and nothing of the environment: no token is asked for, all is enforced.
    let config = Config::load(None, std::iter::empty(), &Overrides::default())
        .context("the default configuration")?;
    let store = MemoryStore::new(MAX_COUNTERS);
    let engine =
        Engine::new(store, Arc::new(SystemClock::new()), set).with_missing_key(MissingKey::Allow);
    let api = Arc::new(Api::new(Arc::new(engine), Arc::new(config), Box::new(String::new)));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    Ok(runtime.block_on(answer(&api, path, body))?)
}

async fn answer(api: &Arc<Api<MemoryStore>>, path: &str, body: String) -> anyhow::Result<Answer> {
    let body = Full::from(body);
    let request = http::Request::post(path).body(body)?;
    let response = match api.answer(request, None).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.context("the answer")?.to_bytes().to_vec();
    Ok(Answer { status, body })
}
