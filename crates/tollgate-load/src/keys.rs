//! Which key a request has: evenly, by Zipf's law, or mostly one.

use std::sync::Arc;

use crate::plan::Distribution;
use crate::random::Random;

/// A whole, in the fixed point that shares are kept in.
const WHOLE: f64 = 4_294_967_296.0;

/// Draws keys, numbered from 0. Key 0 is the most frequent one.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    count: u32,
    form: Form,
}

#[derive(Debug, Clone)]
enum Form {
    Uniform,
    /// One key has this share, of 2^32.
    Hot(u64),
    Table(Arc<[Cell]>),
}

/// A key and, for what is missing to an equal share, another one: the cell is drawn evenly, and then
/// its own key with `share` of 2^32, else the other.
#[derive(Debug, Clone, Copy)]
struct Cell {
    share: u32,
    other: u32,
}

impl Keys {
    /// Keys `0..count`.
    pub(crate) fn new(count: u32, distribution: Distribution) -> Self {
        let count = count.max(1);
        let form = match distribution {
            _ if count == 1 => Form::Uniform,
            Distribution::Uniform => Form::Uniform,
            Distribution::Hot { share } => Form::Hot((share.clamp(0.0, 1.0) * WHOLE) as u64),
            Distribution::Zipf { exponent } => Form::Table(zipf(count, exponent)),
        };
        Self { count, form }
    }

    /// The next key.
    pub(crate) fn draw(&self, random: &mut Random) -> u32 {
        match &self.form {
            Form::Uniform => random.below(self.count).0,
            Form::Hot(share) => {
                let (other, coin) = random.below(self.count - 1);
                if u64::from(coin) < *share { 0 } else { other + 1 }
            }
            Form::Table(cells) => {
                let (place, coin) = random.below(self.count);
                match cells.get(place as usize) {
                    Some(cell) if coin > cell.share => cell.other,
                    _ => place,
                }
            }
        }
    }
}

/// An alias table for weights 1 / rank^exponent: a draw costs the same for any number of keys.
fn zipf(count: u32, exponent: f64) -> Arc<[Cell]> {
    let weights = (0..count).map(|key| (f64::from(key) + 1.0).powf(-exponent));
    let sum: f64 = weights.clone().sum();
    // In units of an equal share: what is above 1 fills up what is below.
    let mut shares: Vec<f64> = weights.map(|weight| weight / sum * f64::from(count)).collect();
    let mut cells: Vec<Cell> = (0..count).map(|key| Cell { share: u32::MAX, other: key }).collect();
    // Weights fall with the rank, so the keys with too much are the first ones.
    let mut rich = 0_usize;
    let first_poor = shares.iter().position(|&share| share < 1.0).unwrap_or(shares.len());
    let mut poor: Vec<u32> = (first_poor as u32..count).rev().collect();
    while let Some(key) = poor.pop() {
        let share = shares.get(key as usize).copied().unwrap_or(1.0);
        if rich >= first_poor {
            break;
        }
        if let Some(cell) = cells.get_mut(key as usize) {
            *cell = Cell { share: (share * f64::from(u32::MAX)) as u32, other: rich as u32 };
        }
        if let Some(left) = shares.get_mut(rich) {
            *left -= 1.0 - share;
            if *left < 1.0 {
                poor.push(rich as u32);
                rich += 1;
            }
        }
    }
    cells.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u32 = 400_000;

    fn counts(count: u32, distribution: Distribution) -> Vec<u32> {
        let keys = Keys::new(count, distribution);
        let mut random = Random::new(7, 0);
        let mut counts = vec![0; count as usize];
        for _ in 0..DRAWS {
            counts[keys.draw(&mut random) as usize] += 1;
        }
        counts
    }

    /// Pearson's statistic, in units of its expectation: 1 if the shares are the expected ones.
    fn misfit(counts: &[u32], shares: &[f64]) -> f64 {
        let sum: f64 = shares.iter().sum();
        let terms = counts.iter().zip(shares).map(|(&seen, share)| {
            let expected = share / sum * f64::from(DRAWS);
            (f64::from(seen) - expected).powi(2) / expected
        });
        terms.sum::<f64>() / (counts.len() - 1) as f64
    }

    #[test]
    fn uniform_keys_come_equally_often() {
        let fit = misfit(&counts(1000, Distribution::Uniform), &[1.0; 1000]);
        assert!((0.8..1.2).contains(&fit), "{fit}");
    }

    #[test]
    fn zipf_keys_come_by_their_rank() {
        for exponent in [0.5, 1.0, 1.1, 2.0] {
            for count in [2_u32, 3, 10, 400] {
                let shares: Vec<f64> =
                    (1..=count).map(|rank| f64::from(rank).powf(-exponent)).collect();
                let fit = misfit(&counts(count, Distribution::Zipf { exponent }), &shares);
                let most = if count < 10 { 7.0 } else { 2.0 };
                assert!(fit < most, "{exponent} {count} {fit}");
            }
        }
    }

    /// The table itself, without chance: its cells add up to the exact shares.
    #[test]
    fn a_table_holds_the_exact_shares() {
        for exponent in [0.0, 0.9, 1.0, 1.1, 3.0] {
            for count in [2_u32, 7, 1000] {
                let mut held = vec![0.0; count as usize];
                for (key, cell) in zipf(count, exponent).iter().enumerate() {
                    let own = f64::from(cell.share) / f64::from(u32::MAX);
                    held[key] += own;
                    held[cell.other as usize] += 1.0 - own;
                }
                let sum: f64 = (1..=count).map(|rank| f64::from(rank).powf(-exponent)).sum();
                for (key, held) in held.iter().enumerate() {
                    let exact = (key as f64 + 1.0).powf(-exponent) / sum * f64::from(count);
                    let tolerance = 1e-6 * f64::from(count);
                    assert!((held - exact).abs() < tolerance, "{exponent} {key}: {held} {exact}");
                }
            }
        }
    }

    #[test]
    fn a_hot_key_has_its_share_and_the_others_share_the_rest() {
        let counts = counts(100, Distribution::Hot { share: 0.9 });
        let mut shares = [0.1 / 99.0; 100];
        shares[0] = 0.9;
        let fit = misfit(&counts, &shares);
        assert!((0.6..1.5).contains(&fit), "{fit}");
    }

    #[test]
    fn one_key_is_always_the_same_and_a_seed_repeats_itself() {
        assert_eq!(counts(1, Distribution::Hot { share: 0.5 }), [DRAWS]);
        assert_eq!(counts(50, Distribution::Uniform), counts(50, Distribution::Uniform));
        assert_eq!(counts(3, Distribution::Hot { share: 1.0 }), [DRAWS, 0, 0]);
    }
}
