//! The simpler forms of an operation, for the minimizer.

use tollgate_core::Nanos;
use tollgate_store::Role;

use crate::history::{Asked, Decision, Lease, Op, Step, Truth};
use crate::nodes::NodeOp;

/// Simpler forms of an operation.
pub fn simpler(op: &Op) -> Vec<Op> {
    match op {
        Op::Decide(all) => {
            let without = |place: usize| {
                let mut rest = all.clone();
                rest.remove(place);
                rest
            };
            let fewer = (0..all.len()).filter(|_| all.len() > 1).map(without);
            fewer.chain(simpler_lists(all, simpler_decision)).map(Op::Decide).collect()
        }
        Op::GiveBack(charges) => {
            simpler_lists(charges, |_| Vec::new()).into_iter().map(Op::GiveBack).collect()
        }
        Op::Settle { id, of, truths } => simpler_truths(truths)
            .into_iter()
            .map(|truths| Op::Settle { id: *id, of: *of, truths })
            .collect(),
        Op::Advance(Step::By(by)) => [1_000_000_000, 1_000_000, 1_000]
            .into_iter()
            .map(|grain| *by / grain * grain)
            .filter(|less| less < by)
            .map(|by| Op::Advance(Step::By(by)))
            .collect(),
        Op::Lease(lease) => [1, lease.times / 2, lease.times - 1]
            .into_iter()
            .filter(|times| *times > 0 && *times < lease.times)
            .map(|times| Op::Lease(Lease { times, ..*lease }))
            .collect(),
        Op::GiveBackPart(id, cost) if *cost > 1 => vec![Op::GiveBackPart(*id, cost - 1)],
        _ => Vec::new(),
    }
}

fn simpler_decision(decision: &Decision) -> Vec<Decision> {
    let simpler = simpler_lists(&decision.asked, simpler_asked).into_iter();
    let simpler = simpler.filter(|asked| !asked.is_empty());
    simpler.map(|asked| Decision { asked, ..decision.clone() }).collect()
}

/// Every list that lacks the last entry, or has a simpler one. Charges are named by their place, so only the
/// last one can go.
fn simpler_lists<T: Clone>(all: &[T], simpler: impl Fn(&T) -> Vec<T>) -> Vec<Vec<T>> {
    let mut lists: Vec<Vec<T>> =
        all.split_last().map(|(_, rest)| rest.to_vec()).into_iter().collect();
    for (place, one) in all.iter().enumerate() {
        for simple in simpler(one) {
            let mut list = all.to_vec();
            list[place] = simple;
            lists.push(list);
        }
    }
    lists
}

fn simpler_asked(asked: &Asked) -> Vec<Asked> {
    let costs = [1, asked.cost / 2, asked.cost.saturating_sub(1)];
    let costs = costs.into_iter().filter(|cost| *cost < asked.cost);
    let mut all: Vec<Asked> = costs.map(|cost| Asked { cost, ..asked.clone() }).collect();
    if asked.role != Role::Must {
        all.push(Asked { role: Role::Must, ..asked.clone() });
    }
    if asked.max_delay.is_some() {
        all.push(Asked { max_delay: None, ..asked.clone() });
    }
    if asked.max_slot_ttl < Nanos::MAX {
        all.push(Asked { max_slot_ttl: Nanos::MAX, ..asked.clone() });
    }
    all
}

fn simpler_truths(truths: &[Truth]) -> Vec<Vec<Truth>> {
    simpler_lists(truths, |truth| match truth {
        Truth::Keep => Vec::new(),
        Truth::Nothing => vec![Truth::Keep],
        Truth::Less(cost) | Truth::More(cost) if *cost <= 1 => vec![Truth::Keep],
        Truth::Less(cost) => vec![Truth::Keep, Truth::Nothing, Truth::Less(cost - 1)],
        Truth::More(cost) => vec![Truth::Keep, Truth::More(cost - 1)],
    })
}

/// Simpler forms of what a node does.
pub fn simpler_node_op(op: &NodeOp) -> Vec<NodeOp> {
    match op {
        NodeOp::Charge { id, node, times, costs } => {
            let (id, node, times) = (*id, *node, *times);
            let fewer = [1, times / 2, times.saturating_sub(1)].into_iter();
            let fewer = fewer.filter(|less| *less < times && *less > 0);
            let fewer = fewer.map(|times| NodeOp::Charge { id, node, times, costs: costs.clone() });
            let costs =
                simpler_lists(
                    costs,
                    |(counter, cost)| {
                        if *cost > 1 { vec![(*counter, 1)] } else { Vec::new() }
                    },
                );
            let costs = costs.into_iter().filter(|costs| !costs.is_empty());
            fewer.chain(costs.map(|costs| NodeOp::Charge { id, node, times, costs })).collect()
        }
        NodeOp::Advance(by) => [1_000_000_000, 1_000_000]
            .into_iter()
            .map(|grain| *by / grain * grain)
            .filter(|less| less < by)
            .map(NodeOp::Advance)
            .collect(),
        _ => Vec::new(),
    }
}
