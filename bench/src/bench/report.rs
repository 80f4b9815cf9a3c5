//! The table in the documentation.

use std::fmt::Write;
use std::path::Path;

use tollgate_bench::record::Record;

/// Targets in the order of their numbers; what has none comes last.
fn order(target: &str) -> (u32, &str) {
    let digits = target.trim_start_matches('T').trim_end_matches(char::is_alphabetic);
    let number = if target.starts_with('T') { digits.parse().unwrap_or(99) } else { 100 };
    (number, target)
}

fn table(records: &[Record], facts: &str) -> String {
    let mut text = String::new();
    for fact in facts.lines().filter(|line| !line.trim().is_empty()) {
        writeln!(text, "- {fact}").unwrap();
    }
    text.push_str("\n| target | work | figure | goal | verdict |\n|---|---|---|---|---|\n");
    for Record { target, work, figure, goal, .. } in records {
        let target = if target.starts_with('T') { target } else { "" };
        let cells = [target, work, figure, goal].map(|cell| cell.replace('|', "\\|"));
        let verdict = records_verdict(records, work);
        writeln!(text, "| {} | {verdict} |", cells.join(" | ")).unwrap();
    }
    let judged = records.iter().filter_map(|record| record.reached);
    let (reached, all) = (judged.clone().filter(|reached| *reached).count(), judged.count());
    writeln!(text, "\n{reached} of {all} goals reached.").unwrap();
    text
}

fn records_verdict(records: &[Record], work: &str) -> &'static str {
    records.iter().find(|record| record.work == work).map_or("–", Record::verdict)
}

pub fn run(results: &Path, facts: &Path, docs: Option<&Path>, section: &str) {
    let text = std::fs::read_to_string(results).unwrap();
    let mut records: Vec<Record> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    records.sort_by(|a, b| order(&a.target).cmp(&order(&b.target)));
    let table = table(&records, &std::fs::read_to_string(facts).unwrap());
    println!("\n{table}");
    let Some(docs) = docs else { return };
    let (begin, end) = (format!("<!-- {section}:begin -->"), format!("<!-- {section}:end -->"));
    let text = std::fs::read_to_string(docs).unwrap();
    let (before, rest) = text.split_once(&begin).expect("the document has the first marker");
    let (_, after) = rest.split_once(&end).expect("the document has the second marker");
    let aside = docs.with_extension("md.new");
    std::fs::write(&aside, format!("{before}{begin}\n{table}{end}{after}")).unwrap();
    std::fs::rename(&aside, docs).unwrap();
}
