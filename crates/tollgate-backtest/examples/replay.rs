//! A backtest in a program of its own: `replay RULES BASELINE TRAFFIC REPORT.html`. `make bench-backtest` measures it.

use std::path::PathBuf;

use tollgate_backtest::{Aim, Format, Mapping, Options, run};
use tollgate_policy::RuleSet;

/// As in the binary `tollgate`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [rules, baseline, traffic, html] = args.as_slice() else {
        return Err("usage: replay RULES BASELINE TRAFFIC REPORT.html".into());
    };
    let read = |file: &String| -> Result<RuleSet, Box<dyn std::error::Error>> {
        let text = std::fs::read_to_string(file)?;
        RuleSet::from_yaml(&text, file).map_err(|problems| problems.to_string().into())
    };
    let options = Options {
        rules: read(rules)?,
        rules_name: rules.clone(),
        baseline: Some((read(baseline)?, baseline.clone())),
        files: vec![PathBuf::from(traffic)],
        format: Format::Auto,
        mapping: Mapping::default(),
        aim: Aim::default(),
        guards: Vec::new(),
    };
    let report = run(&options, &mut |_| {})?;
    std::fs::write(html, report.html("now"))?;
    print!("{}", report.text());
    Ok(())
}
