//! Keys, the order they are asked in, and how long that takes.

use std::time::Instant;

/// The length of every key.
pub const KEY_BYTES: usize = 24;

/// A key as it lies in a prepared sequence.
pub type Key = [u8; KEY_BYTES];

/// The key of this number.
pub fn key(number: u64) -> Key {
    let mut key = *b"user:0000000000000000000";
    let mut rest = number;
    for digit in key[5..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

/// The key as text.
#[inline]
pub fn text(key: &Key) -> &str {
    std::str::from_utf8(key).unwrap()
}

/// Random numbers that are the same in every run.
pub struct Random(u64);

impl Random {
    /// A sequence of its own for every seed but 0.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// The next one.
    pub fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// The next one, from 0 up to 1.
    pub fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// `count` picks out of `keys`, the k-th as likely as 1/k: zipf(1.0).
pub fn zipf(keys: usize, count: usize) -> Vec<u32> {
    let mut sum = 0.0;
    let mut sums = Vec::with_capacity(keys);
    for place in 1..=keys {
        sum += 1.0 / place as f64;
        sums.push(sum);
    }
    let mut random = Random::new(7);
    let mut pick = || {
        let wanted = random.next_f64() * sum;
        sums.partition_point(|reached| *reached < wanted) as u32
    };
    (0..count).map(|_| pick()).collect()
}

/// `count` picks out of `keys`, all as likely.
pub fn uniform(keys: usize, count: usize) -> Vec<u32> {
    let mut random = Random::new(11);
    (0..count).map(|_| (random.next_u64() % keys as u64) as u32).collect()
}

/// Picks as the keys themselves, one after the other: reading them costs no cache miss.
pub fn sequence(picks: &[u32]) -> Vec<Key> {
    picks.iter().map(|pick| key(u64::from(*pick))).collect()
}

/// The one in the middle.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Runs `work` on so many threads at once. Returns the time from the first start to the last end in
/// nanoseconds, and the sum of what they returned.
pub fn on_threads(threads: usize, work: impl Fn(usize) -> u64 + Sync) -> (f64, u64) {
    if threads == 1 {
        let start = Instant::now();
        let sum = work(0);
        return (start.elapsed().as_nanos() as f64, sum);
    }
    let ready = std::sync::Barrier::new(threads);
    let spans = std::thread::scope(|scope| {
        let start = |thread| {
            let (ready, work) = (&ready, &work);
            scope.spawn(move || {
                ready.wait();
                let start = Instant::now();
                let sum = work(thread);
                (start, Instant::now(), sum)
            })
        };
        let started: Vec<_> = (0..threads).map(start).collect();
        started.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    let first = spans.iter().map(|span| span.0).min().unwrap();
    let last = spans.iter().map(|span| span.1).max().unwrap();
    ((last - first).as_nanos() as f64, spans.iter().map(|span| span.2).sum())
}
