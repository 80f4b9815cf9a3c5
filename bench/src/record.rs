//! Figures against targets.

use std::fs::OpenOptions;
use std::io::Write;

use serde::{Deserialize, Serialize};

/// The variable that names the file which records are appended to.
const RESULTS: &str = "BENCH_RESULTS";

/// One row of the table.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    /// Which target it belongs to.
    pub target: String,
    /// What was measured.
    pub work: String,
    /// What came out.
    pub figure: String,
    /// What was asked for; empty where the row is there to compare with.
    pub goal: String,
    /// Whether it was reached; absent where there is no goal or no figure.
    pub reached: Option<bool>,
}

impl Record {
    /// The word for it.
    pub const fn verdict(&self) -> &'static str {
        match self.reached {
            Some(true) => "reached",
            Some(false) => "**missed**",
            None => "–",
        }
    }
}

/// Prints a row and appends it to the results.
pub fn record(target: &str, work: &str, figure: &str, goal: &str, reached: Option<bool>) {
    let row = Record {
        target: target.into(),
        work: work.into(),
        figure: figure.into(),
        goal: goal.into(),
        reached,
    };
    let verdict = row.verdict().replace('*', "");
    println!("  {target:4} {work}: {figure}  [{goal}] {verdict}");
    if let Some(path) = std::env::var_os(RESULTS) {
        let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        writeln!(file, "{}", serde_json::to_string(&row).unwrap()).unwrap();
    }
}

/// A row without a goal: something to compare with.
pub fn compare(target: &str, work: &str, figure: &str) {
    record(target, work, figure, "", None);
}

/// A whole number with separators.
pub fn grouped(number: f64) -> String {
    let digits = format!("{:.0}", number.abs());
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if number <= -0.5 { format!("-{text}") } else { text }
}
