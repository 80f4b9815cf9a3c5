//! `admin.take_over`: whether this node's database replaces the rules of another one in Redis.
//!
//! It happens at most once in the life of a process, and only if all of this holds:
//!
//! - The reports of all nodes were read long enough to include every node that is alive.
//! - No node that serves the admin API on the other database, or on a database that it has not reported,
//!   is alive. If one is, `admin.take_over` has no effect until this process is started again.
//! - This database holds rules.
//!
//! The rules that are replaced are saved in the data directory first.

use tollgate_control::content::Content;
use tollgate_control::kept;
use tollgate_store::redis::Board;

use super::Keeper;
use super::ownership::{self, OtherOwner};

/// Reports of all nodes that are read before rules may be replaced. A node that is alive appears in one
/// of them, and the report of a node that was killed has expired by the last.
pub(super) const MIN_REPORTS: u32 = 6;

/// What became of `admin.take_over`.
#[derive(Debug, Default)]
pub(super) enum TakeOver {
    /// It is configured, or not, and nothing was replaced yet.
    #[default]
    Open,
    /// It has no effect in this process any more.
    Ended(String),
}

impl Keeper {
    /// Whether the rules of another database, if they are there, are replaced.
    pub(super) async fn may_take_over(
        &self,
        board: &Board,
        content: &Content,
        there: Option<&(String, i64)>,
    ) -> Result<bool, String> {
        let foreign = there.filter(|(installation, _)| *installation != content.installation);
        let Some((installation, revision)) = foreign else { return Ok(false) };
        if !self.around.config.control.take_over {
            return Err(self.refused(installation, *revision, None));
        }
        let allowed = match self.check_take_over(content, installation) {
            Ok(()) => self.save_replaced(board, installation).await,
            Err(why) => Err(why),
        };
        match allowed {
            Ok(()) => Ok(true),
            Err(why) => Err(self.refused(installation, *revision, Some(&why))),
        }
    }

    /// The error says why the rules of that database are not replaced.
    fn check_take_over(&self, content: &Content, installation: &str) -> Result<(), String> {
        let mut state = self.take_over.lock();
        if let TakeOver::Ended(why) = &*state {
            return Err(why.clone());
        }
        let Some(nodes) = self.roll.known_nodes(MIN_REPORTS) else {
            return Err("it is not known yet which nodes are alive".to_owned());
        };
        match ownership::other_owner(&nodes, self.roll.node(), installation) {
            Some(OtherOwner::Alive(node)) => {
                let why = format!(
                    "node {node} of that database is alive. To replace its rules, stop it first, and \
                     then start this node again"
                );
                *state = TakeOver::Ended(why.clone());
                return Err(why);
            }
            Some(OtherOwner::Unknown(node)) => {
                return Err(format!("node {node} is alive and has not reported its database"));
            }
            None => {}
        }
        let current = self.installer.current();
        let own = current.filter(|current| current.content.installation == content.installation);
        if own.is_none_or(|own| own.rules.rules().is_empty()) {
            return Err("this node's database holds no rules: apply them first".to_owned());
        }
        Ok(())
    }

    /// Saves the rules in Redis to the data directory, where there is one.
    async fn save_replaced(&self, board: &Board, installation: &str) -> Result<(), String> {
        let Some(folder) = &self.around.config.data_dir else { return Ok(()) };
        let Ok(replaced) = self.read(board, None).await else {
            tracing::warn!("the rules in Redis that are about to be replaced cannot be read");
            return Ok(());
        };
        let file = folder.join(super::install::set_aside_name(installation));
        let rules = replaced.rules.rules().len();
        let content = replaced.content;
        let path = file.clone();
        let write = move || kept::keep(&path, &content);
        match tokio::task::spawn_blocking(write).await {
            Ok(Ok(())) => {
                tracing::warn!(rules, file = %file.display(),
                    "the rules in Redis that are about to be replaced were saved");
                Ok(())
            }
            Ok(Err(error)) => Err(format!("the rules in Redis cannot be saved first: {error}")),
            Err(error) => Err(format!("the rules in Redis cannot be saved first: {error}")),
        }
    }

    /// The rules of another database were replaced.
    pub(super) fn taken_over(&self, there: Option<&(String, i64)>, content: &Content) {
        let (installation, revision) =
            there.map_or(("?", 0), |(installation, revision)| (installation.as_str(), *revision));
        tracing::warn!(
            replaced_database = installation,
            replaced_revision = revision,
            database = content.installation,
            revision = content.revision,
            "admin.take_over replaced the rules of another database in Redis; remove admin.take_over \
             from the configuration now"
        );
        let why = "it was used already. To use it again, start this node again".to_owned();
        *self.take_over.lock() = TakeOver::Ended(why);
    }

    /// What is reported where another database owns the rules in Redis.
    pub(super) fn refused(&self, installation: &str, revision: i64, why: Option<&str>) -> String {
        let advice = match why {
            Some(why) => format!("admin.take_over is set, and has no effect: {why}."),
            None => "If the rules of that database are to be thrown away, stop its nodes first, \
                     and then start this node with admin.take_over: true."
                .to_owned(),
        };
        let problem = format!(
            "this Redis carries the rules of another database ({installation}, revision {revision}), \
             so this node enforces other rules than its neighbours, and its changes do not reach them. \
             To use the rules that are there, start this node with --role data, or give both nodes \
             one PostgreSQL. {advice}"
        );
        self.around.figures.publishing_refused(Some(problem.clone()));
        problem
    }
}
