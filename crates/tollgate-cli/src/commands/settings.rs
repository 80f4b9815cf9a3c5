//! `tollgate settings`

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::args::SettingsCommand;
use crate::failure::{Ended, Failure, Outcome};
use crate::output;
use crate::server::Server;
use crate::value::{instant, list, shown};
use crate::yaml;

pub(super) fn run(command: SettingsCommand) -> Ended {
    match command {
        SettingsCommand::Show { json, reach } => show(&Server::new(&reach), json),
        SettingsCommand::Set { name, value, reach } => {
            let value = read(&value)?;
            Server::new(&reach).put(&format!("settings/{name}"), &json!({ "value": value }))?;
            output::note(&format!("{name} is {}", yaml::inline(&value)))?;
            Ok(Outcome::Done)
        }
        SettingsCommand::Unset { name, reach } => {
            Server::new(&reach).delete(&format!("settings/{name}"))?;
            output::note(&format!("{name} is as it is without a setting"))?;
            Ok(Outcome::Done)
        }
    }
}

fn read(text: &str) -> Result<Value, Failure> {
    yaml::read(text).context("the value is neither YAML nor JSON").map_err(Failure::Usage)
}

fn show(server: &Server, json: bool) -> Ended {
    let answer = server.get("settings")?;
    let settings = list(&answer, "items").to_vec();
    if json {
        output::print_json(&Value::Array(settings))?;
        return Ok(Outcome::Done);
    }
    if settings.is_empty() {
        output::note("no settings are set: the defaults and the server's configuration hold")?;
        return Ok(Outcome::Done);
    }
    let row = |setting: &Value| {
        [
            shown(setting, "name"),
            setting.get("value").map(yaml::inline).unwrap_or_default(),
            instant(setting, "updated_at"),
            shown(setting, "updated_by"),
        ]
    };
    let rows: Vec<_> = settings.iter().map(row).collect();
    output::print_table(["SETTING", "VALUE", "UPDATED", "BY"], &rows)?;
    Ok(Outcome::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_yaml() {
        assert_eq!(read("on").unwrap(), json!("on"));
        assert_eq!(read("false").unwrap(), json!(false));
        let rule = read("{limit: 100, window: 1m}").unwrap();
        assert_eq!(rule, json!({"limit": 100, "window": "1m"}));
        assert!(read("{limit").is_err());
    }
}
