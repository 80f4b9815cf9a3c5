//! Rows as CSV (RFC 4180) that a spreadsheet can open without calculating what others wrote into it.

/// What a cell begins with that a spreadsheet takes for a formula.
const FORMULA: [char; 6] = ['=', '+', '-', '@', '\t', '\r'];

/// Rows of cells.
#[derive(Debug, Default)]
pub(super) struct Csv {
    text: String,
}

impl Csv {
    /// Adds a row.
    pub(super) fn row<'c>(&mut self, cells: impl Iterator<Item = &'c str>) {
        for (place, cell) in cells.enumerate() {
            if place > 0 {
                self.text.push(',');
            }
            self.cell(cell);
        }
        self.text.push_str("\r\n");
    }

    fn cell(&mut self, cell: &str) {
        // Blanks in front are skipped by some programs, and full-width signs are read as the plain ones.
        let first = cell.trim_start_matches([' ', '\n', '\u{feff}']).chars().next();
        let is_formula =
            first.is_some_and(|first| FORMULA.contains(&first) || "＝＋－＠".contains(first));
        let is_quoted = cell.contains([',', '"', '\n', '\r']);
        if is_quoted {
            self.text.push('"');
        }
        if is_formula {
            self.text.push('\'');
        }
        for letter in cell.chars() {
            if letter == '"' {
                self.text.push('"');
            }
            self.text.push(letter);
        }
        if is_quoted {
            self.text.push('"');
        }
    }

    /// All rows.
    pub(super) fn finish(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(cell: &str) -> String {
        let mut csv = Csv::default();
        csv.row([cell].into_iter());
        csv.finish()
    }

    #[test]
    fn formulas_are_text_and_separators_are_quoted() {
        for formula in ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", " =1", "＝1", "\u{feff}=1"] {
            assert_eq!(one(formula), format!("'{formula}\r\n"), "{formula:?}");
        }
        assert_eq!(one("\r=1"), "\"'\r=1\"\r\n");
        assert_eq!(one("=\"a\",b"), "\"'=\"\"a\"\",b\"\r\n");
        assert_eq!(one("\n=1"), "\"'\n=1\"\r\n");
        assert_eq!((one("gpt-4o"), one("")), ("gpt-4o\r\n".into(), "\r\n".into()));
    }
}
