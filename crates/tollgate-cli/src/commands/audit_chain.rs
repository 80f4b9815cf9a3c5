//! `tollgate audit verify`, `tollgate audit export` and `tollgate audit key`

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read as _, Write};
use std::path::Path;

use anyhow::{Context as _, anyhow};
use serde_json::{Value, json};
use tollgate_control::chain::{Broken, Link, NotedHead, PublicKey, Verified, Verifier};

use crate::args::AuditCommand;
use crate::failure::{Ended, Failure, Outcome};
use crate::output;
use crate::server::{Server, query};
use crate::value::text;

/// The longest line of an export: a change with two rules as large as the server takes them, escaped.
const MAX_LINE_BYTES: u64 = 64 << 20;

pub(super) fn run(command: &AuditCommand) -> Ended {
    match command {
        AuditCommand::Verify { file, public_key, head, json, reach } => {
            let verifier = verifier(public_key, head.as_deref())?;
            let result = match file {
                Some(file) => verify_file(verifier, file)?,
                None => verify_server(verifier, &Server::new(reach))?,
            };
            report(result, !public_key.is_empty(), head.is_some(), *json)
        }
        AuditCommand::Export { output, reach } => export(&Server::new(reach), output.as_deref()),
        AuditCommand::Key { reach } => {
            let answer = Server::new(reach).get("audit/key")?;
            let none = || anyhow!("this server has no key: see history.signing_key_file");
            let key = text(&answer, "public_key").ok_or_else(none)?;
            output::print(&format!("{}\n", output::visible(key)))?;
            Ok(Outcome::Done)
        }
    }
}

fn verifier(keys: &[String], head: Option<&str>) -> Result<Verifier, Failure> {
    let key = |text: &String| {
        let key = PublicKey::from_hex(text);
        key.with_context(|| format!("--public-key {text}")).map_err(Failure::Usage)
    };
    let keys = keys.iter().map(key).collect::<Result<_, _>>()?;
    let noted = |text: &str| {
        let wrong = || anyhow!("--head is NUMBER:HASH, as an earlier check printed it");
        NotedHead::parse(text).ok_or_else(wrong).map_err(Failure::Usage)
    };
    Ok(Verifier::new(keys, head.map(noted).transpose()?))
}

/// All links of a server, page by page.
fn each_link(
    server: &Server,
    mut each: impl FnMut(Value) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let mut cursor: Option<String> = None;
    loop {
        let parameters = [("limit", Some("250")), ("cursor", cursor.as_deref())];
        let mut page = server.get(&format!("audit/export{}", query(&parameters)))?;
        let Some(Value::Array(items)) = page.get_mut("items").map(Value::take) else {
            return Err(Failure::Failed(anyhow!("the answer of {} is no list", server.url())));
        };
        for item in items {
            if !each(item)? {
                return Ok(());
            }
        }
        let next = text(&page, "next_cursor").map(str::to_owned);
        if next.is_none() || next == cursor {
            return Ok(());
        }
        cursor = next;
    }
}

fn verify_server(
    mut verifier: Verifier,
    server: &Server,
) -> Result<Result<Verified, Broken>, Failure> {
    let mut broken = None;
    each_link(server, |item| {
        let link: Link = serde_json::from_value(item).context("the server sent an unknown link")?;
        broken = verifier.push(link).err();
        Ok(broken.is_none())
    })?;
    Ok(match broken {
        Some(broken) => Err(broken),
        None => verifier.finish(),
    })
}

fn verify_file(mut verifier: Verifier, path: &Path) -> Result<Result<Verified, Broken>, Failure> {
    let mut reader: Box<dyn BufRead> = if path == Path::new("-") {
        Box::new(BufReader::new(io::stdin()))
    } else {
        let file = File::open(path).with_context(|| path.display().to_string());
        Box::new(BufReader::new(file.map_err(Failure::Usage)?))
    };
    let mut line = Vec::new();
    for number in 1_u64.. {
        line.clear();
        let read = (&mut reader).take(MAX_LINE_BYTES).read_until(b'\n', &mut line)?;
        if read == 0 {
            break;
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let link: Result<Link, _> = serde_json::from_slice(&line);
        let link = link.with_context(|| format!("line {number} is no line of an export"))?;
        if let Err(broken) = verifier.push(link) {
            return Ok(Err(broken));
        }
    }
    Ok(verifier.finish())
}

fn export(server: &Server, path: Option<&Path>) -> Ended {
    let mut writer: Box<dyn Write> = match path {
        Some(path) => {
            let file = File::create(path).with_context(|| path.display().to_string());
            Box::new(BufWriter::new(file.map_err(Failure::Usage)?))
        }
        None => Box::new(BufWriter::new(io::stdout())),
    };
    let mut is_whole = false;
    each_link(server, |item| {
        is_whole = text(&item, "type") == Some("head");
        writeln!(writer, "{item}")?;
        Ok(true)
    })?;
    writer.flush()?;
    if is_whole {
        Ok(Outcome::Done)
    } else {
        Err(Failure::Failed(anyhow!("the export has no end: the server did not send all of it")))
    }
}

fn report(
    result: Result<Verified, Broken>,
    has_keys: bool,
    has_head: bool,
    as_json: bool,
) -> Ended {
    let found = match result {
        Ok(found) => found,
        Err(broken) => {
            if as_json {
                output::print_json(&json!({ "ok": false, "problem": broken.to_string() }))?;
            } else {
                output::print(&format!("BROKEN: {}\n", output::visible(&broken.to_string())))?;
            }
            return Ok(Outcome::Refused);
        }
    };
    if as_json {
        output::print_json(&json!({
            "ok": true,
            "installation": found.installation,
            "changes": found.changes,
            "removed": found.removed,
            "earlier": found.earlier,
            "earlier_are_checked": found.earlier_are_checked,
            "head": { "number": found.head.number, "hash": found.head.hash },
            "public_keys": found.keys,
            "keys_are_trusted": has_keys,
            "has_noted_head": has_head.then_some(found.has_noted_head),
        }))?;
        return Ok(Outcome::Done);
    }
    output::print(&in_words(&found, has_keys, has_head))?;
    Ok(Outcome::Done)
}

fn in_words(found: &Verified, has_keys: bool, has_head: bool) -> String {
    let mut lines = vec![format!("ok: {} changes follow each other unaltered", found.changes)];
    if found.removed > 0 {
        let removed = found.removed;
        lines.push(format!("{removed} older ones were removed to keep a bound, which is signed"));
    }
    let earlier = found.earlier;
    if earlier > 0 && found.earlier_are_checked {
        lines.push(format!("{earlier} records from before the chain are unaltered"));
    } else if earlier > 0 {
        lines.push(format!(
            "{earlier} records from before the chain cannot be checked: others of them were removed"
        ));
    }
    if has_head && !found.has_noted_head {
        lines.push("the noted head is among the changes that were removed".to_owned());
    }
    if found.head.number > 0 {
        lines.push(format!("head {}:{}", found.head.number, found.head.hash));
    }
    let comparison = if has_keys { "" } else { " (not compared)" };
    lines.extend(found.keys.iter().map(|key| format!("signed by {key}{comparison}")));
    lines.push(String::new());
    lines.join("\n")
}
