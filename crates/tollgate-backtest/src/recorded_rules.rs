//! The rules in force while it was recorded, as the baseline.

use std::sync::Arc;

use tollgate_engine::Enforcement;
use tollgate_policy::RuleSet;

use crate::clock::VirtualClock;
use crate::record::Record;
use crate::report::instant;
use crate::side::Side;
use crate::table::sanitized;

/// What this baseline is called.
pub(crate) const NAME: &str = "the rules in force while it was recorded";

/// So many changes are named in a note.
const MAX_NAMED_CHANGES: usize = 5;

/// Follows the rules that a recording names.
pub(crate) struct RecordedRules {
    is_baseline: bool,
    current: Option<(String, String)>,
    /// The first changes, and how many there were.
    changes: Vec<u64>,
    change_count: u64,
    problem: Option<String>,
    /// Whether there are any.
    pub(crate) is_used: bool,
}

impl RecordedRules {
    pub(crate) const fn new(is_baseline: bool) -> Self {
        Self {
            is_baseline,
            current: None,
            changes: Vec::new(),
            change_count: 0,
            problem: None,
            is_used: false,
        }
    }

    /// Other rules came into force on the node.
    pub(crate) fn change(
        &mut self,
        record: &Record,
        side: &mut Option<Side>,
        is_first: bool,
        clock: &Arc<VirtualClock>,
    ) {
        let [enforcement, text] = record.event.names.as_slice() else { return };
        let stated = Some((enforcement.clone(), text.clone()));
        if self.current == stated {
            return;
        }
        self.current = stated;
        if !is_first {
            self.change_count += 1;
            if self.changes.len() < MAX_NAMED_CHANGES {
                self.changes.push(record.at);
            }
        }
        // Without rules at the start there is nothing that all requests could be compared with.
        if !self.is_baseline || (side.is_none() && !is_first) {
            return;
        }
        let rules = if text.is_empty() {
            Err("they are longer than a recording holds".to_owned())
        } else {
            RuleSet::from_yaml(text, "recorded rules").map_err(|problems| problems.to_string())
        };
        let rules = match rules {
            Ok(rules) => rules,
            Err(problem) => {
                let at = instant(record.at);
                self.problem.get_or_insert_with(|| {
                    format!("the rules of {at} cannot be replayed: {}", sanitized(&problem))
                });
                return;
            }
        };
        let side = match side {
            Some(side) => {
                side.swap_rules(rules);
                side
            }
            None => side.insert(Side::new(&rules, clock)),
        };
        side.set_enforcement(Enforcement::from_name(enforcement).unwrap_or_default());
        self.is_used = true;
    }

    pub(crate) fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self.problem.clone().into_iter().collect();
        if !self.changes.is_empty() {
            let shown: Vec<String> = self.changes.iter().map(|at| instant(*at)).collect();
            let count = self.change_count;
            let times = if count == 1 { "once".to_owned() } else { format!("{count} times") };
            let more = if count > shown.len() as u64 { ", …" } else { "" };
            notes.push(format!(
                "the rules or their enforcement changed {times} while it was recorded: {}{more}",
                shown.join(", ")
            ));
        }
        notes
    }
}
