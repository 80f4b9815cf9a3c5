//! What is printed: text, tables, JSON; colour only on a terminal. Whatever is printed, text of others reaches the
//! terminal without characters that it would obey.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};

use tollgate_policy::terminal::is_obeyed;

/// The colours that are used.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Colour {
    Green,
    Red,
    Yellow,
}

/// The text in colour, if the stream is a terminal and `NO_COLOR` does not forbid it.
pub(crate) fn coloured(text: &str, colour: Colour, stream: &impl IsTerminal) -> String {
    let forbidden = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    if forbidden || !stream.is_terminal() {
        return text.to_owned();
    }
    let begin = match colour {
        Colour::Green => GREEN,
        Colour::Red => RED,
        Colour::Yellow => YELLOW,
    };
    format!("{begin}{text}{PLAIN}")
}

const GREEN: &str = "\x1b[1;32m";
const RED: &str = "\x1b[1;31m";
const YELLOW: &str = "\x1b[1;33m";
const PLAIN: &str = "\x1b[0m";

/// Writes to standard output. A closed pipe is an error like any other, not a panic.
pub(crate) fn print(text: &str) -> io::Result<()> {
    print_to(&mut io::stdout().lock(), text)
}

/// Writes all of it, with everything escaped that a terminal would obey but lines, tabs and our own colours.
pub(crate) fn print_to(stream: &mut impl Write, text: &str) -> io::Result<()> {
    stream.write_all(safe_text(text).as_bytes())?;
    stream.flush()
}

/// Writes over the line that was written last, as progress does on a terminal.
pub(crate) fn print_over(stream: &mut impl Write, line: &str) -> io::Result<()> {
    stream.write_all(b"\r")?;
    print_to(stream, line)
}

fn safe_text(text: &str) -> Cow<'_, str> {
    escaped(text, &['\n', '\t'], &[GREEN, RED, YELLOW, PLAIN])
}

/// The text with everything escaped that a terminal would obey, but these characters and these sequences.
pub(crate) fn escaped<'t>(text: &'t str, letters: &[char], sequences: &[&str]) -> Cow<'t, str> {
    let is_escaped = |letter| is_obeyed(letter) && !letters.contains(&letter);
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let sequence = sequences.iter().find(|sequence| rest.starts_with(**sequence));
        let taken = sequence.map_or(letter.len_utf8(), |sequence| sequence.len());
        match sequence {
            Some(sequence) => safe.push_str(sequence),
            None if is_escaped(letter) => safe.extend(letter.escape_unicode()),
            None => safe.push(letter),
        }
        rest = rest.get(taken..).unwrap_or_default();
    }
    Cow::Owned(safe)
}

/// Writes JSON to standard output, indented, since people look at it too.
pub(crate) fn print_json(value: &serde_json::Value) -> io::Result<()> {
    print(&without_controls(&format!("{value:#}\n")))
}

/// JSON text in which every character that a terminal would obey is escaped, but line feeds. JSON itself demands that
/// only up to U+001F.
pub(crate) fn without_controls(json: &str) -> String {
    let mut safe = String::with_capacity(json.len());
    for letter in json.chars() {
        if is_obeyed(letter) && letter != '\n' {
            for unit in letter.encode_utf16(&mut [0; 2]) {
                let _ = write!(safe, "\\u{unit:04x}");
            }
        } else {
            safe.push(letter);
        }
    }
    safe
}

/// Text of somebody else for people to read: what terminals would obey is escaped, such as `\u{202e}`.
pub(crate) fn visible(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        if is_obeyed(letter) {
            safe.extend(letter.escape_unicode());
        } else {
            safe.push(letter);
        }
    }
    safe
}

/// Says on standard error what someone should look at.
pub(crate) fn warn(text: &str) -> io::Result<()> {
    let label = coloured("warning:", Colour::Yellow, &io::stderr());
    print_to(&mut io::stderr(), &format!("{label} {text}\n"))
}

/// Says on standard error what was done: standard output is for what was asked for.
pub(crate) fn note(text: &str) -> io::Result<()> {
    print_to(&mut io::stderr(), &format!("{text}\n"))
}

/// The widest cell of a table on a terminal.
const MAX_CELL: usize = 48;

/// Prints a table; long cells are cut on a terminal, and complete otherwise.
pub(crate) fn print_table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> io::Result<()> {
    print_columns(&head, &rows.iter().map(|row| row.to_vec()).collect::<Vec<_>>())
}

/// The same, where the columns depend on what was asked for.
pub(crate) fn print_columns(head: &[&str], rows: &[Vec<String>]) -> io::Result<()> {
    if !io::stdout().is_terminal() {
        return print(&columns(head, rows));
    }
    let cut = |cell: &String| match cell.char_indices().nth(MAX_CELL) {
        Some((end, _)) => format!("{}…", cell.get(..end).unwrap_or(cell)),
        None => cell.clone(),
    };
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(cut).collect()).collect();
    print(&columns(head, &rows))
}

/// A table with aligned columns.
pub(crate) fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    columns(&head, &rows.iter().map(|row| row.to_vec()).collect::<Vec<_>>())
}

fn columns(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.len()).collect();
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| visible(cell)).collect()).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    let mut add = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for (cell, width) in cells.zip(&widths) {
            let _ = write!(line, "{cell:width$}  ");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    };
    add(&mut head.iter().copied());
    for row in &rows {
        add(&mut row.iter().map(String::as_str));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_holds_no_control_characters() {
        let value = serde_json::json!({"a": "x\u{9b}2J\u{7f}\u{1b}\u{80}\u{e9}", "\u{9d}": 1});
        let text = without_controls(&format!("{value:#}\n"));
        assert!(text.chars().all(|letter| letter == '\n' || !letter.is_control()), "{text:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }

    /// Names of others must not hide or reorder what a table says.
    #[test]
    fn tables_hold_no_characters_that_terminals_obey() {
        let cells = ["nimda\u{202e}", "a\u{200b}b\u{1b}[2J\n", "\u{e0041}\u{feff}é"];
        let rows = cells.map(|cell| [cell.to_owned()]);
        let text = table(["N"], &rows);
        let lines = "N\nnimda\\u{202e}\na\\u{200b}b\\u{1b}[2J\\u{a}\n\\u{e0041}\\u{feff}é\n";
        assert_eq!(text, lines);
        let json = without_controls(&serde_json::json!(cells).to_string());
        assert!(!json.contains(is_obeyed), "{json}");
        assert_eq!(serde_json::from_str::<[String; 3]>(&json).unwrap(), cells);
    }

    /// Also what no command has escaped by itself.
    #[test]
    fn nothing_is_printed_that_terminals_obey_but_our_colours() {
        let text = format!(
            "{RED}error:{PLAIN} rule \u{202e}a\u{2066}\u{200f}\u{2028}\u{9b}2J\x1b[2Jé\tb\r\n"
        );
        let mut printed = Vec::new();
        print_to(&mut printed, &text).unwrap();
        let safe = "rule \\u{202e}a\\u{2066}\\u{200f}\\u{2028}\\u{9b}2J\\u{1b}[2Jé\tb\\u{d}\n";
        assert_eq!(String::from_utf8(printed).unwrap(), format!("{RED}error:{PLAIN} {safe}"));
        assert!(matches!(safe_text("plain\n"), Cow::Borrowed("plain\n")));
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["a".to_owned(), "1".to_owned()], ["longer".to_owned(), "2".to_owned()]];
        assert_eq!(table(["NAME", "N"], &rows), "NAME    N\na       1\nlonger  2\n");
    }
}
