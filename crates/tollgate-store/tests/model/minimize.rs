//! Makes a failing list of operations small enough to read.

/// Removes operations and replaces them by simpler ones for as long as the rest still fails, with at most
/// `tries` attempts. `simpler` lists simpler forms of one operation, the simplest first.
pub fn minimize<T: Clone>(
    ops: Vec<T>,
    tries: u32,
    simpler: impl Fn(&T) -> Vec<T>,
    mut fails: impl FnMut(&[T]) -> bool,
) -> Vec<T> {
    let mut best = ops;
    let mut left = tries;
    let mut still_fails = |candidate: &[T]| {
        left = left.saturating_sub(1);
        left > 0 && fails(candidate)
    };
    loop {
        let is_shorter = remove_stretches(&mut best, &mut still_fails);
        let is_simpler = simplify_each(&mut best, &simpler, &mut still_fails);
        if !is_shorter && !is_simpler {
            return best;
        }
    }
}

/// Removes stretches of operations, from half of them down to one.
fn remove_stretches<T: Clone>(best: &mut Vec<T>, fails: &mut impl FnMut(&[T]) -> bool) -> bool {
    let before = best.len();
    let mut size = (best.len() / 2).max(1);
    loop {
        let mut start = 0;
        while start < best.len() {
            let mut candidate = best.clone();
            candidate.drain(start..(start + size).min(best.len()));
            if fails(&candidate) {
                *best = candidate;
            } else {
                start += size;
            }
        }
        if size == 1 {
            return best.len() < before;
        }
        size /= 2;
    }
}

fn simplify_each<T: Clone>(
    best: &mut [T],
    simpler: impl Fn(&T) -> Vec<T>,
    fails: &mut impl FnMut(&[T]) -> bool,
) -> bool {
    let mut improved = false;
    for place in 0..best.len() {
        while let Some(better) = simpler(&best[place]).into_iter().find(|simple| {
            let mut candidate = best.to_vec();
            candidate[place] = simple.clone();
            fails(&candidate)
        }) {
            best[place] = better;
            improved = true;
        }
    }
    improved
}
