//! `tollgate rules import-envoy`

use std::path::PathBuf;

use tollgate_policy::ImportOptions;

use super::validate::read_text;
use crate::failure::{Ended, Failure, Outcome};
use crate::output;

pub(super) fn run(files: &[PathBuf], options: ImportOptions) -> Ended {
    let texts = files.iter().map(|file| read_text(file)).collect::<Result<Vec<_>, _>>()?;
    let files: Vec<(&str, &str)> =
        texts.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    match tollgate_policy::import_envoy(&files, options) {
        Ok(rules) => {
            output::print(&rules)?;
            Ok(Outcome::Done)
        }
        Err(problems) => Err(Failure::Usage(anyhow::anyhow!("{problems}"))),
    }
}
