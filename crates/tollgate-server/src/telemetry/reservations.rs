//! Metrics of reservations. Over all nodes and in tokens as in cost,
//! reserved + extra = settled + refunded + what expired or is open.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use tollgate_engine::{BudgetDebts, Engine, ReservationCounts};

use super::stores::{count, counters, gauges};
use crate::stores::Stores;

/// Reads an engine at every scrape.
pub(super) struct ReservationCollector(pub(super) Arc<Engine<Stores>>);

impl fmt::Debug for ReservationCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReservationCollector")
    }
}

impl Collector for ReservationCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let encoder = &mut encoder;
        let ReservationCounts {
            reserved,
            settled,
            released,
            reserved_tokens,
            refunded_tokens,
            extra_tokens,
            reserved_cost,
            refunded_cost,
            extra_cost,
        } = self.0.reservations().counts();
        let memory = self.0.store().memory().usage();
        let expired = memory.expired_reservations;
        let states = [
            ("reserved", reserved),
            ("settled", settled),
            ("released", released),
            ("expired", expired),
        ];
        let by_state = states.map(|(state, value)| (vec![("state", state.to_owned())], value));
        let help = "Reservations made, settled and released here, and expired in memory; in Redis \
                    they expire unseen";
        counters(encoder, "reservations", help, by_state)?;
        let figures = [
            ("reserved_tokens", "Tokens that were reserved by estimate", reserved_tokens),
            ("refunded_tokens", "Tokens that were reserved and given back", refunded_tokens),
            ("extra_tokens", "Tokens that were charged beyond the estimate", extra_tokens),
            ("reserved_cost", "Cost that was reserved by estimate", reserved_cost),
            ("refunded_cost", "Cost that was reserved and given back", refunded_cost),
            ("extra_cost", "Cost that was charged beyond the estimate", extra_cost),
        ];
        for (name, help, value) in figures {
            counters(encoder, name, help, [(vec![], value)])?;
        }
        let debts = self.0.budget_debts();
        let by_currency = |of: fn(&BudgetDebts) -> u64| {
            let sample =
                |it: &BudgetDebts| (vec![("currency", it.currency.code().to_owned())], of(it));
            debts.iter().map(sample).collect::<Vec<_>>()
        };
        let help = "Answers that used more than was reserved from a hard budget";
        counters(encoder, "budget_debts", help, by_currency(|it| it.answers))?;
        let help = "What they used beyond it, in 1e-9 of the currency";
        counters(encoder, "budget_debt_nanos", help, by_currency(|it| it.nanos))?;
        let kept = [(vec![], count(memory.reservations))];
        gauges(encoder, "memory_reservations", "Records of reservations kept in memory", kept)
    }
}
