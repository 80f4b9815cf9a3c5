//! What is printed: text, tables, JSON; colour only on a terminal.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};

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
    let code = match colour {
        Colour::Green => 32,
        Colour::Red => 31,
        Colour::Yellow => 33,
    };
    format!("\x1b[1;{code}m{text}\x1b[0m")
}

/// Writes to standard output. A closed pipe is an error like any other, not a panic.
pub(crate) fn print(text: &str) -> io::Result<()> {
    print_to(&mut io::stdout().lock(), text)
}

/// Writes all of it.
pub(crate) fn print_to(stream: &mut impl Write, text: &str) -> io::Result<()> {
    stream.write_all(text.as_bytes())?;
    stream.flush()
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

/// Whether terminals obey a character instead of showing it: control characters, which include DEL and U+0080 to U+009F
/// (U+009B is `ESC [`), and those that hide text or change its direction, so that it reads as another.
pub(crate) fn is_obeyed(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
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
    if !io::stdout().is_terminal() {
        return print(&table(head, rows));
    }
    let cut = |cell: &String| match cell.char_indices().nth(MAX_CELL) {
        Some((end, _)) => format!("{}…", cell.get(..end).unwrap_or(cell)),
        None => cell.clone(),
    };
    let rows: Vec<[String; N]> = rows.iter().map(|row| row.each_ref().map(cut)).collect();
    print(&table(head, &rows))
}

/// A table with aligned columns.
pub(crate) fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let mut widths = head.map(str::len);
    let rows: Vec<_> = rows.iter().map(|row| row.each_ref().map(|cell| visible(cell))).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    let mut add = |cells: [&str; N]| {
        let mut line = String::new();
        for (cell, width) in cells.into_iter().zip(widths) {
            let _ = write!(line, "{cell:width$}  ");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    };
    add(head);
    for row in &rows {
        add(row.each_ref().map(String::as_str));
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

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["a".to_owned(), "1".to_owned()], ["longer".to_owned(), "2".to_owned()]];
        assert_eq!(table(["NAME", "N"], &rows), "NAME    N\na       1\nlonger  2\n");
    }
}
