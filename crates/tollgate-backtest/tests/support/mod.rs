//! Files of traffic and backtests of them.

use std::io::Write as _;
use std::path::PathBuf;

use tollgate_backtest::{Aim, BacktestError, Format, Guard, Mapping, Options, Report};
use tollgate_policy::RuleSet;

/// A file with these bytes.
pub(crate) fn file(content: impl AsRef<[u8]>) -> tempfile::TempPath {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(content.as_ref()).unwrap();
    file.into_temp_path()
}

pub(crate) fn rules(text: &str) -> RuleSet {
    RuleSet::from_yaml(text, "rules.yaml").unwrap_or_else(|problems| panic!("{problems}"))
}

pub(crate) fn options(text: &str, files: &[&tempfile::TempPath]) -> Options {
    Options {
        rules: rules(text),
        rules_name: "draft.yaml".to_owned(),
        baseline: None,
        files: files.iter().map(|path| PathBuf::from(path.as_os_str())).collect(),
        format: Format::Auto,
        mapping: Mapping::default(),
        aim: Aim::default(),
        guards: Vec::<Guard>::new(),
    }
}

#[allow(dead_code, reason = "not every test binary runs one")]
pub(crate) fn run(options: &Options) -> Result<Report, BacktestError> {
    tollgate_backtest::run(options, &mut |_| {})
}

/// A line of JSON at so many milliseconds.
#[allow(dead_code, reason = "not every test binary writes JSON")]
pub(crate) fn line(millis: u64, user: &str) -> String {
    format!(
        "{{\"time\":{},\"user_id\":\"{user}\",\"endpoint\":\"/a\",\"method\":\"GET\"}}\n",
        1_000_000_000_000 + millis
    )
}
